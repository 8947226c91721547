"""Read a study's file, in tune/ (sweeps) or tune/tables/ (tables), and return its plan.

All keys but `rows` have defaults: a table of five lines compares a new method with three baselines
on digits. A sweep is one experiment in many configurations. `extends` names the study that the
file's other keys change. A scale's keys are laid over those of the file, and the command line's
over both, before the whole is validated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from fedray.base.errors import UserError, nearest, shown
from fedray.base.shipped import folders
from fedray.config import (
    MOST_BYTES,
    Frozen,
    Tree,
    dump_yaml,
    flatten,
    is_key,
    is_record,
    merge,
    read_experiment,
    read_extended,
    validate,
    with_plugins,
    with_read_plugins,
)
from fedray.config.registry import registry, spelled
from fedray.results.claims import ALL, EACH, MEAN, check_row_name, rows_in
from fedray.results.design import PRINTED, PaperNumbers, Reporting, RowPlan, Tuning
from fedray.storage.files import check_name, read_text
from fedray.storage.metric import find_metric
from fedray.studies.plan import StudyPlan, known_metrics
from fedray.studies.printed import PAPER, as_printed, can_be_printed
from fedray.studies.space import check_space, grid, parse_space

Kind = Literal["sweep", "table"]
SCALES = ("laptop", "desktop", PAPER, PRINTED)
PLUGINS = "plugins"
BASELINES = ("local", "fedavg", "fedproto")
"""Default baselines of a table."""
SAMPLES = 16
"""Default number of configurations of a sweep that draws them."""


def check_keys(tree: Any) -> Tree:
    """Return keys of an experiment that a study may set; raise a ValueError for anything else."""
    if not isinstance(tree, dict):
        raise ValueError(f"expected keys with values, for example {{lr: 0.1}}, found {shown(tree)}")
    for key in tree:
        if not is_key(key):
            raise ValueError(f"{shown(key)} is no key")
        if key == "seed" or key.partition(".")[0] == "report":
            raise ValueError(f"{key} belongs to the study; write report: {{seeds: [0], ...}}")
    return tree


Keys = Annotated[Tree, BeforeValidator(check_keys)]
"""Dotted keys of an experiment with their values."""


class PaperItem(Frozen):
    """A table, figure or scenario of a paper that a study answers."""

    paper: str
    """The name of a file in fedray/papers/."""
    item: str
    """The paper's name for it, for example "Table 4"."""
    asks: str = ""
    """The question, with data sets and setting."""
    measure: str = ""
    """The metric, file or figure of the runs that holds the answer."""
    rows: list[str] = Field(default_factory=list)
    """The rows of the table that the item is about; empty: all."""
    offline: str = ""
    """The part that cannot run without a network, why, and what is tested instead."""
    then: list[str] = Field(default_factory=list)
    """Commands to run on the study's folder afterwards: `report --metric global_accuracy`."""


class StudyKeys(Frozen):
    """The keys of a study's file. A scale's keys are laid over them, then the command line's."""

    answers: str = Field("", max_length=500)
    """The table, figure or question that the study answers; empty: how the methods compare."""
    items: list[PaperItem] = Field(default_factory=list)
    """Items of papers that the study answers."""
    experiment: str | None = None
    """A shipped experiment or a YAML file that rows and columns change. A table's default is
    fedavg_digits."""
    set: Keys = Field(default_factory=dict)
    """Keys of the experiment, for every cell."""
    rows: dict[str, RowPlan] = Field(default_factory=dict)
    """Of a table, methods by name: `mine: {algorithm: {name: fedtsp, lambda: 7}}`, or `mine:
    fedtsp`. A row without an algorithm whose name is an algorithm uses it. At a scale, null leaves
    a row out."""
    baselines: list[str] = Field(default_factory=lambda: list(BASELINES))
    """Algorithms that become rows below those of `rows`."""
    columns: dict[str, Keys] = Field(default_factory=dict)
    """Settings by name, each a mapping of the experiment's keys that it sets; empty: one column."""
    curve: Tree = Field(default_factory=dict)
    """Instead of columns, one key and its numbers: `algorithm.lambda: [0, 1, 7]` makes the columns
    lambda=0, lambda=1 and lambda=7, and the figure a curve."""
    metrics: list[str] = Field(default_factory=lambda: ["local_accuracy"], min_length=1)
    """The metrics of the table; claims are about the first, unless they name another."""
    choose: str | None = None
    """The metric that chooses configurations and rounds; None: the first one of `metrics`."""
    select: Literal["validation", "test"] | None = None
    """The images on which configurations and rounds are chosen. `test` is common in papers and
    marks every number. None: validation images; in a sweep, the experiment's report.select."""
    validation_fraction: float | None = Field(0.2, gt=0, lt=1)
    """Share of images that clients hold out if the experiment sets none; null if its partition
    makes the validation split."""
    at: Literal["best", "final"] = "best"
    """The round whose numbers count: the best by the metric that chooses (never round 0), or the
    last."""
    space: Tree | None = None
    """The search space of every row in every column: {grid: [...]}, {choice: [...]}, or a range
    of Ray Tune: uniform, quniform, loguniform, randint (without its upper end), qrandint,
    lograndint. Join keys that vary together by commas: `data.clients, participation: {grid: [[10,
    1.0]]}`.
    A table's default is lr: {grid: [0.02, 0.06, 0.2]}."""
    tuning: Tuning = Tuning()
    """`configurations`, `rounds`, `search`, `extend`: see `Tuning`. A sweep extends no grid, and
    tries all of it."""
    report: Reporting = Reporting()
    """`seeds`, `rounds`, `looks`: see `Reporting`. A sweep's default is one seed."""
    claims: list[Any] | None = None
    """Inequalities between cells, see `fedray.results.claims`; None: each method of `rows` is
    better than each baseline."""
    paper: PaperNumbers | None = None
    """`source` and `numbers`: see `PaperNumbers`."""
    glosses: dict[str, str] = Field(default_factory=dict)
    """Sentences about rows or columns, by name, printed below the table."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Confidence level of the intervals; verdicts err with probability 1 - confidence at most."""
    max_concurrent: int | None = Field(None, ge=1, le=100_000)
    """Concurrent runs; None: as many as the cluster holds."""
    hours: float | None = Field(None, gt=0, le=1e6)
    """Approximate duration on one core; printed before the study starts."""
    left_out: str = Field("", max_length=1000)
    """Parts of the paper's table that a scale leaves out."""
    scales: Tree = Field(default_factory=lambda: {"laptop": {}})
    """laptop: minutes; desktop: a night on a few cores; paper: GPUs; printed: what differs from the
    rule of `fedray.studies.printed`. Keys of `set`, `tuning`, `report` and each row are laid over
    the study's; others replace them."""


ONLY_TABLES = ("rows", "baselines", "columns", "curve", "claims", "paper", "glosses", "confidence")
"""Keys that a sweep has not."""
DEFAULTS: Mapping[str, Tree] = {
    "sweep": {"tuning": {"configurations": None, "extend": False}, "report": {"seeds": [0]}},
    "table": {"experiment": "fedavg_digits", "space": {"lr": {"grid": [0.02, 0.06, 0.2]}}},
}
"""What a kind of study has unless its file says otherwise."""
LAID = ("set", "tuning", "report")
"""Keys of a scale or a command line that are laid over the study's, key by key."""
AS_THEY_ARE = ("metrics", "report", "at", "paper", "glosses", "confidence", "max_concurrent",
               "hours", "left_out")  # fmt: skip
"""Keys of a study that its plan has unchanged."""


class StudyFile(NamedTuple):
    """A study's file.

    Attributes:
        path: the path of the file.
        tree: its content, merged with the files that it extends.
        bases: the names of the files that it extends, the nearest first.
    """

    path: Path
    tree: Tree
    bases: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The file's text; if it extends files, the comment at its head and the merged content."""
        if not self.path.is_file():
            return dump_yaml(self.tree)
        text = read_text(self.path, "the file", MOST_BYTES)
        if not self.bases:
            return text
        lines = text.splitlines(keepends=True)
        head = "".join(takewhile(lambda line: line.startswith("#"), lines))
        head += f"# Merged with the files that it extends: {', '.join(self.bases)}.\n"
        return head + dump_yaml(self.tree)


def read_study(kind: Kind, name: str, tree: Tree | None = None) -> StudyFile:
    """Read a study's file, merged with the files that it extends as experiments are merged.

    Args:
        kind: the kind of study to look for.
        name: a study's name or file.
        tree: the content, if it is in no file.

    Raises:
        UserError: if a file does not exist, is no mapping, or extends itself.
    """
    own = [] if tree is None else [(Path(name), {k: v for k, v in tree.items() if k != "extends"})]
    base = name if tree is None else tree.get("extends")
    chain = [*(read_extended(base, folders(f"{kind}s"), kind) if base else ()), *own]
    bases = tuple(path.stem for path, _ in reversed(chain[:-1]))
    return StudyFile(chain[-1][0], reduce(merge, (each for _, each in chain)), bases)


def plan_study(
    kind: Kind,
    name: str,
    pairs: Iterable[tuple[str, Any]] = (),
    scale: str | None = None,
    plugins: Sequence[str] = (),
    rows: Sequence[str] = (),
    tree: Tree | None = None,
) -> StudyPlan:
    """Load a study and return the plan of one scale with the command line's keys.

    Keys such as `report.seeds=[0,1]` (or `seed=0,1`), `tuning.configurations=2` and
    `report.select=test` change the study; `rounds=5` sets the rounds of tuning and report. All
    other keys override the experiments.

    Args:
        kind: the kind of study to look for.
        name: a study's name or file.
        pairs: keys and values of the command line.
        scale: laptop, desktop, paper or printed; None: the first scale of the file.
        plugins: files and modules in addition to those that the experiments name.
        rows: the rows of a table to run; empty: all.
        tree: the content of the study, if it is in no file.

    Raises:
        UserError: naming the first defect of the file or of the keys.
    """
    path, tree, _ = read_study(kind, name, tree)
    where = f"{kind} {check_name(path.stem)}"
    tree = as_printed(tree, where) if scale == PRINTED else tree
    scales = tree.get("scales") or {"laptop": {}}
    if not isinstance(scales, Mapping) or not {*scales} <= {*SCALES}:
        raise UserError(f"{where}.scales is {shown(scales)}, expected keys of {', '.join(SCALES)}")
    if scale is not None and scale not in scales:
        have = dict.fromkeys([*scales, *([PRINTED] if can_be_printed(scales) else [])])
        raise UserError(f"{where} has no {scale} scale, only {', '.join(have)}")
    label = scale or next(iter(scales))
    line = _sort_assignments(pairs, kind)
    given = line.pop("set")
    try:
        laid = _laid(kind, tree, [scales[label] or {}, line], rows)
        study = validate(StudyKeys, laid, where)
        for keys in (given, *(row.set for row in study.rows.values())):
            check_keys(_without_plugins(keys))
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return _plan(kind, path.stem, label, study, given, plugins)


def _sort_assignments(pairs: Iterable[tuple[str, Any]], kind: Kind) -> Tree:
    """Sort keys into those of the study (`tuning.*`, `report.*`) and others."""
    assignments: Tree = {"set": {}, "tuning": {}, "report": {}}
    for key, value in pairs:
        part, _, inner = key.partition(".")
        if key == "seed":
            assignments["report"]["seeds"] = _seeds_in(value)
        elif key in ("select", "report.select"):
            assignments["select"] = value
        elif part in ("tuning", "report") and inner:
            assignments[part][inner] = value
        elif key == "rounds":
            for phase in ("report", "tuning")[: 1 if kind == "sweep" else 2]:
                assignments[phase]["rounds"] = value
        else:
            assignments["set"].pop(key, None)
            assignments["set"][key] = value
    return assignments


def _seeds_in(value: Any) -> list[Any]:
    """Return the seeds of `seed=3`, `seed=0,1,2` and `seed=[0,1,2]`; other values unchanged."""
    if isinstance(value, str):
        entries = [entry.strip() for entry in value.split(",")]
        return [int(entry) if entry.isdecimal() else entry for entry in entries]
    return value if isinstance(value, list) else [value]


# --- layers ---------------------------------------------------------------------------------------


def _laid(kind: Kind, tree: Tree, layers: Sequence[Tree], picked: Sequence[str]) -> Tree:
    """Return a file's content with its defaults, and with the keys of layers laid over it.

    Args:
        kind: the kind of study.
        tree: the file.
        layers: a scale, then the command line.
        picked: the rows to keep; empty: all.

    Raises:
        ValueError: for rows that are not there, or that a sweep cannot have.
    """
    laid, changes = dict(DEFAULTS[kind]), dict[str, Any]()
    for layer in (tree, *layers):
        if layer.get("columns") is not None or layer.get("curve") is not None:
            laid |= {"columns": {}, "curve": {}}
        for key, value in layer.items():
            if kind == "sweep" and key in ONLY_TABLES:
                raise ValueError(f"{key} is for tables; leave it out")
            if key == "rows" and layer is not tree:
                changes |= value or {}
            elif key in LAID and isinstance(value, Mapping):
                laid[key] = {**laid.get(key, {}), **value}
            elif value is not None or layer is tree:
                laid[key] = value
    if kind == "table":
        laid |= _laid_rows(laid, changes, picked)
        for key, values in (laid.get("curve") or {}).items():
            name = key.rpartition(".")[2]
            laid["columns"] = {f"{name}={value}": {key: value} for value in values}
    elif picked:
        raise ValueError("a sweep has no rows")
    return laid


def _laid_rows(laid: Tree, changes: Tree, picked: Sequence[str]) -> Tree:
    """Return rows, baselines and claims of a table with the changes of a scale to its rows."""
    rows = {name: _row_keys(name, row) for name, row in (laid.get("rows") or {}).items()}
    if not rows:
        raise ValueError("rows is empty; name a method, for example rows: {fedtsp: }")
    baselines = [name for name in laid.get("baselines", BASELINES) if name not in rows]
    rows |= {name: {"algorithm": name} for name in baselines}
    for name in (*changes, *picked):
        if name not in rows:
            raise ValueError(f"there is no row {shown(name)}.{nearest(name, rows)}")
    for name, tree in changes.items():
        rows[name] = rows[name] | ({} if tree is None else _row_keys(name, tree))
    left = {name for name in rows if name in changes and changes[name] is None}
    left |= {name for name in rows if picked and name not in picked}
    claims = laid.get("claims")
    return {
        "rows": {name: tree for name, tree in rows.items() if name not in left},
        "baselines": [name for name in baselines if name not in left],
        "claims": claims and [claim for claim in claims if not _rows_of(claim) & left],
    }


def _rows_of(claim: Any) -> set[str]:
    """Return the rows that a claim names."""
    return rows_in(str(claim.get("claim", "") if isinstance(claim, Mapping) else claim))


def _row_keys(name: str, tree: Any) -> Tree:
    """Return the keys of a row, which may be written as the name of its method."""
    if tree is None or isinstance(tree, str):
        return {"algorithm": name if tree is None else tree}
    if not isinstance(tree, Mapping):
        raise ValueError(f"rows.{name} is {shown(tree)}, expected a method or its keys")
    return dict(tree)


# --- the plan -------------------------------------------------------------------------------------


def _plan(
    kind: Kind, name: str, label: str, study: StudyKeys, given: Tree, plugins: Sequence[str]
) -> StudyPlan:
    """Return the checked plan of a study's keys at one scale; loads the study's plug-ins.

    Args:
        kind: the kind of study.
        name: the study's name.
        label: the scale.
        study: the keys.
        given: keys of the command line for the experiments.
        plugins: files and modules in addition to those that the experiments name.
    """
    where, is_sweep = f"{kind} {name}", kind == "sweep"
    if study.experiment is None or (is_sweep and not study.space):
        missing = "experiment" if study.experiment is None else "space"
        raise UserError(f"{where}.{missing} is missing; a sweep needs experiment and space")
    rows = {ALL: RowPlan(label=ALL)} if is_sweep else study.rows
    bases = _bases(study, study.experiment, rows, given.get(PLUGINS), plugins)
    has_choice = is_sweep or label == PRINTED
    of_experiment = (bases[study.experiment].get("report") or {}) if has_choice else {}
    select = study.select or of_experiment.get("select", "validation")
    rows = {name: _row(study, name, rows, where, is_sweep=is_sweep) for name in rows}
    draws = is_sweep and study.tuning.search != "grid"
    count = study.tuning.configurations or (SAMPLES if draws else None)
    claims = _default_claims(study) if study.claims is None else study.claims
    plan = StudyPlan(
        kind=kind,
        name=name,
        scale=label,
        answers=study.answers or f"how {', '.join(rows)} compare",
        experiment=study.experiment,
        bases=bases,
        set=_without_plugins(study.set),
        given=_without_plugins(given),
        rows=rows,
        columns={n: _without_plugins(of) for n, of in study.columns.items()} or {ALL: {}},
        curve=next(iter(study.curve), None),
        choose=study.choose or study.metrics[0],
        select=select,
        validation_fraction=study.validation_fraction if select == "validation" else None,
        tuning=study.tuning.model_copy(update={"configurations": count}),
        claims=[] if is_sweep or label == PRINTED else claims,
        **{key: getattr(study, key) for key in AS_THEY_ARE},
    )
    _check_plan(plan, where)
    return plan


def _without_plugins(tree: Tree) -> Tree:
    """Return keys without the plug-ins, which `_bases` loads."""
    return {key: value for key, value in tree.items() if key != PLUGINS}


def _bases(
    study: StudyKeys,
    experiment: str,
    rows: Mapping[str, RowPlan],
    asked: Any,
    more: Sequence[str],
) -> dict[str, Tree]:
    """Load the plug-ins and return the experiments of all rows, each with all plug-in sources.

    Args:
        study: the study.
        experiment: the experiment of rows that name none.
        rows: the rows.
        asked: the value of `plugins` on the command line, which replaces the file's.
        more: further plug-ins.
    """
    names = dict.fromkeys([experiment, *(row.experiment or experiment for row in rows.values())])
    pairs = [(PLUGINS, study.set.get(PLUGINS) if asked is None else asked)]
    trees = {
        name: with_read_plugins(read_experiment(name), pairs, more, named=not is_record(name))
        for name in names
    }
    texts = {text["module"]: text for tree in trees.values() for text in tree.get(PLUGINS, ())}
    all_plugins = [(PLUGINS, list(texts.values()) or None)]
    return {name: with_plugins(tree, all_plugins) for name, tree in trees.items()}


def _row(
    study: StudyKeys, name: str, rows: Mapping[str, RowPlan], where: str, *, is_sweep: bool
) -> RowPlan:
    """Return a row with its method, title, whole space, and the row that a control explains."""
    from fedray.core import algorithms

    row, at = rows[name], where if is_sweep else f"{where}.rows.{name}"
    check_row_name(name, where)
    for key in ("of", "over", "tuned_as"):
        other = getattr(row, key)
        if other is not None and (other == name or other not in rows):
            raise UserError(f"{at}.{key}: there is no other row {shown(other)}")
    of = (row.of or next(iter(rows))) if row.control else None
    if of == name:
        raise UserError(f"{at}: a control explains another row; name it in of:")
    leader = row if row.tuned_as is None else rows[row.tuned_as]
    if row.tuned_as is not None and (row.space or leader.tuned_as is not None):
        raise UserError(f"{at}.tuned_as: row {row.tuned_as} must tune by itself, and {name} not")
    space = {**(study.space or {}), **leader.space}
    axes = {key: tree for key, tree in space.items() if tree is not None}
    check_space(axes, study.tuning.search, at)
    budget = study.tuning.configurations
    if not is_sweep and study.tuning.search == "grid" and budget:
        points = len(grid(parse_space(axes)))
        if points > budget:
            raise UserError(
                f"{at}.space is a grid of {points} configurations, and tuning.configurations="
                f"{budget} is the budget of every row; raise it, or list fewer values"
            )
    is_method = row.algorithm is None and name in registry("algorithm").names()
    method = name if is_method else row.algorithm
    of_name = method.get("name") if isinstance(method, Mapping) else method
    is_named = spelled(str(of_name or name)) == spelled(name) and name in algorithms.names()
    title = str(getattr(algorithms.get(name), "title", name))[:45] if is_named else name
    changes = {"algorithm": method, "space": axes, "of": of, "label": row.label or title}
    return row.model_copy(update={**changes, "set": _without_plugins(row.set)})


def _default_claims(study: StudyKeys) -> list[Tree]:
    """Return the default claims: each method is better than each baseline, by the first metric."""
    sides = [
        (name, other)
        for name, row in study.rows.items()
        if name not in study.baselines and row.control is None
        for other in study.baselines
    ]
    less = _less_is_better(study.metrics[0])
    return [{"claim": f"{b} > {a}" if less else f"{a} > {b}"} for a, b in sides]


# --- checks ---------------------------------------------------------------------------------------


def _check_plan(plan: StudyPlan, where: str) -> None:
    """Raise an error for settings that contradict each other, or that the kind lacks."""
    tuning, is_sweep, asha = plan.tuning, plan.is_sweep, plan.tuning.asha is not None
    wrong = {
        "tuning.asha compares single runs, not means over seeds; give one seed, and run the best "
        "configurations with more, or leave asha out": asha and len(plan.report.seeds) > 1,
        "tuning.asha: Optuna would take a stopped run's last value for its result; use search: "
        "random, or leave asha out": asha and tuning.search == "optuna",
        "tuning.asha and search: optuna are for sweeps": (
            (asha or tuning.search == "optuna") and not is_sweep
        ),
        "tuning.rounds is for tables; set rounds": is_sweep and tuning.rounds is not None,
        "tuning.configurations is null; set the budget of every row": (
            not is_sweep and tuning.configurations is None
        ),
        f"tuning.at: there is no column {shown(tuning.at)}": (
            tuning.at is not None and tuning.at not in plan.columns
        ),
        f"the column names {MEAN} and {EACH} are reserved for claims": (
            bool({MEAN, EACH} & plan.columns.keys())
        ),
        "controls need a first metric of which larger values are better": (
            bool(plan.controls) and _less_is_better(plan.metrics[0])
        ),
    }
    for sentence, applies in wrong.items():
        if applies:
            raise UserError(f"{where}: {sentence}")
    _check_overlaps(plan, where)
    for name, row in plan.rows.items():
        if wrong_names := [m for m in row.metrics if m not in [*plan.metrics, plan.choose]]:
            near = nearest(wrong_names[0], plan.metrics)
            raise UserError(
                f"{where}.rows.{name}.metrics: no metric {shown(wrong_names[0])}.{near}"
            )
    for claim in plan.parsed_claims():
        for side, metric in ((claim.better, claim.metric), (claim.worse, claim.than)):
            if plan.rows[side.row].metrics.get(metric, metric) is None:
                raise UserError(
                    f"{where}.claims: {shown(claim.text)} is about {metric}, which row {side.row} "
                    "does not have (metrics: null); leave the claim out"
                )


def _check_overlaps(plan: StudyPlan, where: str) -> None:
    """Raise an error if a key is tuned, and set elsewhere; or set by a column, and elsewhere."""
    given = [*plan.given, *(key for over in plan.given.items() for key in flatten(dict([over])))]
    columns = {f"column {name}": keys for name, keys in plan.columns.items()}
    for name, row in plan.rows.items():
        of = "" if name == ALL else f" for row {name}"
        tuned = [key for axis in plan.axes_of(name) for key in axis.keys]
        found = {"the command line": next(filter(given.__contains__, tuned), None)}
        for source, keys in {"the row's set": row.set, **columns}.items():
            found[source] = _overlap(tuned, keys)
        for source, key in found.items():
            if key is not None:
                raise UserError(f"{where}: {key} is tuned{of}, and set by {source}; leave one out")
    given += [] if plan.report.rounds is None else ["rounds"]
    for source, keys in columns.items():
        if key := _overlap(keys, given):
            raise UserError(
                f"{where}: {source} sets {key}, and so does the command line or report.rounds; "
                "leave one out"
            )


def _overlap(keys: Iterable[str], others: Iterable[str]) -> str | None:
    """Return the first key that equals, contains or is contained in one of the others."""
    for key in keys:
        if any(f"{o}.".startswith(f"{key}.") or f"{key}.".startswith(f"{o}.") for o in others):
            return key
    return None


def _less_is_better(name: str) -> bool:
    metric = find_metric(name, known_metrics())
    return metric is not None and metric.direction == "min"
