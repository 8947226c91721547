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
    ReportConfig,
    Tree,
    dump_yaml,
    flatten,
    is_key,
    is_record,
    merge,
    override,
    read_experiment,
    read_extended,
    validate,
    with_plugins,
    with_read_plugins,
)
from fedray.registry import registry, spelled
from fedray.results.claims import ALL, EACH, MEAN, Claim, check_row_name, parse_claims, rows_in
from fedray.results.design import (
    MOST_CONFIGURATIONS,
    PRINTED,
    PaperNumbers,
    Reporting,
    RowPlan,
    Select,
    Tuning,
)
from fedray.storage.files import check_name, read_text
from fedray.storage.metric import find_metric
from fedray.studies.plan import StudyPlan, known_metrics
from fedray.studies.printed import PAPER, as_printed, can_be_printed
from fedray.studies.space import check_space, chooses_rounds, grid, parse_space

Kind = Literal["sweep", "table"]
SCALES = ("laptop", "desktop", PAPER, PRINTED)
PLUGINS = "plugins"
BASELINES = ("local", "fedavg", "fedproto")
"""Default baselines of a table."""
SAMPLES = 16
"""Default number of configurations of a sweep that draws them."""


def _as_keys(tree: Any) -> Any:
    """Check the keys of an experiment that a study sets."""
    if not isinstance(tree, Mapping):
        example = "{data.partition.alpha: 0.1}"
        raise ValueError(f"expected keys with values, for example {example}, found {shown(tree)}")
    if wrong := _wrong_keys(tree):
        raise ValueError(wrong)
    return tree


def _wrong_keys(tree: Mapping[str, Any]) -> str:
    """Return what is wrong with keys of an experiment that a study sets; "" if nothing is."""
    if wrong := [key for key in tree if not is_key(key)]:
        return f"{shown(wrong[0])} is no key"
    if "seed" in tree:
        return "a study has its own seeds; write report: {seeds: [...]}"
    return chooses_rounds(tree)


Keys = Annotated[Tree, BeforeValidator(_as_keys)]
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
    select: Select | None = None
    """The images on which configurations and rounds are chosen. `test` is common in papers and
    marks every number; `nothing`, with at: final, makes a sweep a figure. None: validation images;
    in a sweep, the experiment's report.select."""
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
    rule of `fedray.studies.printed`. Keys of `set`, `tuning`, `report` and `rows` are laid over the
    study's; others replace them."""


ONLY_TABLES = (
    "rows", "baselines", "columns", "curve", "claims", "paper", "glosses", "confidence",
)  # fmt: skip
"""Keys that a sweep has not."""
DEFAULTS: Mapping[str, Tree] = {
    "sweep": {"tuning": {"configurations": None, "extend": False}, "report": {"seeds": [0]}},
    "table": {"experiment": "fedavg_digits", "space": {"lr": {"grid": [0.02, 0.06, 0.2]}}},
}
"""What a kind of study has unless its file says otherwise."""
LAID = ("set", "tuning", "report")
"""Keys of a scale or a command line that are laid over the study's, key by key."""


class StudyFile(NamedTuple):
    """A study's file.

    Attributes:
        path: the path of the file.
        tree: its content, merged with the files that it extends.
        bases: the names of the files that it extends, the nearest first.
    """

    path: Path
    tree: Tree
    bases: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file's text; if it extends files, the comment at its head and the merged content."""
        text = read_text(self.path, "the file", MOST_BYTES)
        if not self.bases:
            return text
        lines = text.splitlines(keepends=True)
        head = "".join(takewhile(lambda line: line.startswith("#"), lines))
        names = ", ".join(self.bases)
        merged = f"# Merged with the files that it extends: {names}.\n{dump_yaml(self.tree)}"
        return head + merged


def read_study(kind: Kind, name: str) -> StudyFile:
    """Read a study's file, merged with the files that it extends as experiments are merged.

    Args:
        kind: the kind of study to look for.
        name: a study's name or file.

    Raises:
        UserError: if a file does not exist, is no mapping, or extends itself.
    """
    chain = read_extended(name, folders(f"{kind}s"), kind)
    tree = reduce(merge, (each for _, each in chain))
    bases = tuple(path.stem for path, _ in reversed(chain[:-1]))
    return StudyFile(chain[-1][0], tree, bases)


def plan_study(
    kind: Kind,
    name: str,
    pairs: Iterable[tuple[str, Any]] = (),
    scale: str | None = None,
    plugins: Sequence[str] = (),
    rows: Sequence[str] = (),
) -> StudyPlan:
    """Load a study and return the plan of one scale with the command line's keys.

    Keys such as `report.seeds=[0,1]` (or `seed=0,1`), `tuning.configurations=2` and `select=test`
    change the study; `rounds=5` sets the rounds of tuning and report. All other keys override the
    experiments.

    Args:
        kind: the kind of study to look for.
        name: a study's name or file.
        pairs: keys and values of the command line.
        scale: laptop, desktop, paper or printed; None: the first scale of the file.
        plugins: files and modules in addition to those that the experiments name.
        rows: the rows of a table to run; empty: all.

    Raises:
        UserError: naming the first defect of the file or of the keys.
    """
    path, tree, _ = read_study(kind, name)
    where = f"{kind} {check_name(path.stem)}"
    tree = as_printed(tree, where) if scale == PRINTED else tree
    asked = _sort_assignments(pairs, kind)
    given = asked.pop("set")
    label, overlay = _scale(tree, scale, where)
    laid = _laid(kind, tree, [overlay, asked], rows, where)
    return _plan(kind, path.stem, label, validate(StudyKeys, laid, where), given, plugins)


def _scale(tree: Tree, scale: str | None, where: str) -> tuple[str, Tree]:
    """Return the label of a scale, by default the first one, and its keys."""
    scales = tree.get("scales", {"laptop": {}})
    if not isinstance(scales, Mapping) or not scales:
        raise UserError(f"{where}.scales is empty; leave it out, or give laptop: {{}}")
    for label, keys in scales.items():
        if label not in SCALES:
            raise UserError(
                f"{where}.scales: {shown(label)} is none of {', '.join(SCALES)}."
                f"{nearest(label, SCALES)}"
            )
        if not isinstance(keys, Mapping | None):
            raise UserError(f"{where}.scales.{label} is {shown(keys)}, expected keys with values")
    if scale is not None and scale not in scales:
        more = [PRINTED] if can_be_printed(scales) else []
        only = ", ".join(dict.fromkeys([*scales, *more]))
        raise UserError(f"{where} has no {scale} scale, only {only}")
    label = scale or next(iter(scales))
    return label, scales[label] or {}


def _sort_assignments(pairs: Iterable[tuple[str, Any]], kind: Kind) -> Tree:
    """Sort keys into those of the study (`tuning.*`, `report.*`, `select`) and others."""
    assignments: Tree = {"set": {}, "tuning": {}, "report": {}}
    for key, value in pairs:
        part, _, inner = key.partition(".")
        if key == "seed":
            assignments["report"]["seeds"] = _seeds_in(value)
        elif key in ("select", "report.select"):
            assignments["select"] = value
        elif part == "tuning" and inner:
            assignments["tuning"][inner] = value
        elif part == "report" and inner in Reporting.model_fields:
            assignments["report"][inner] = value
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


def _laid(
    kind: Kind, tree: Tree, layers: Sequence[Tree], picked: Sequence[str], where: str
) -> Tree:
    """Return a file's content with its defaults, and with the keys of layers laid over it.

    Args:
        kind: the kind of study.
        tree: the file.
        layers: a scale, then the command line.
        picked: the rows to keep; empty: all.
        where: the study, for messages.
    """
    if kind == "sweep":
        for key in (key for layer in (tree, *layers) for key in layer if key in ONLY_TABLES):
            raise UserError(f"{where}: {key} is for tables; leave it out")
        if picked:
            raise UserError(f"{where} has no row {shown(picked[0])}, because it is a sweep")
    laid, changes = dict(DEFAULTS[kind]), dict[str, Any]()
    for layer in (tree, *layers):
        if layer.get("columns") is not None or layer.get("curve") is not None:
            laid |= {"columns": {}, "curve": {}}
        for key, value in layer.items():
            if key == "rows" and layer is not tree:
                changes |= value or {}
            elif key in LAID and isinstance(value, Mapping):
                laid[key] = {**laid.get(key, {}), **value}
            elif value is not None or layer is tree:
                laid[key] = value
    if kind == "table":
        laid |= _laid_rows(laid, changes, picked, where)
        if laid.get("curve"):
            laid["columns"] = _columns_of(laid["curve"], laid.get("columns"), where)
    return laid


def _laid_rows(laid: Tree, changes: Tree, picked: Sequence[str], where: str) -> Tree:
    """Return rows, baselines and claims of a table with the changes of a scale to its rows."""
    if not isinstance(laid.get("rows"), Mapping) or not laid["rows"]:
        raise UserError(f"{where}.rows is empty; name a method, for example rows: {{fedtsp: }}")
    rows = {name: _row_keys(name, row, where) for name, row in laid["rows"].items()}
    baselines = [name for name in laid.get("baselines", BASELINES) if name not in rows]
    rows |= {name: {"algorithm": name} for name in baselines}
    for name in (*changes, *picked):
        if name not in rows:
            raise UserError(f"{where} has no row {shown(name)}.{nearest(name, rows)}")
    for name, tree in changes.items():
        rows[name] = {**rows[name], **({} if tree is None else _row_keys(name, tree, where))}
    left = {name for name in rows if name in changes and changes[name] is None}
    left |= {name for name in rows if picked and name not in picked}
    for name in rows.keys() - left:
        for key in ("of", "over", "tuned_as"):
            if (other := rows[name].get(key)) in left:
                raise UserError(
                    f"{where}.rows.{name}.{key}: row {other} is left out; add it, or leave out "
                    f"{name}"
                )
    claims = laid.get("claims")
    return {
        "rows": {name: tree for name, tree in rows.items() if name not in left},
        "baselines": [name for name in baselines if name not in left],
        "claims": claims and [claim for claim in claims if not _rows_of(claim) & left],
    }


def _row_keys(name: str, tree: Any, where: str) -> Tree:
    """Return the keys of a row, which may be written as the name of its method."""
    if tree is None or isinstance(tree, str):
        return {"algorithm": name if tree is None else tree}
    if not isinstance(tree, Mapping):
        found = f"{where}.rows.{name} is {shown(tree)}"
        raise UserError(f"{found}, expected a method, or its keys")
    return dict(tree)


def _rows_of(claim: Any) -> set[str]:
    """Return the rows that a claim names."""
    return rows_in(str(claim.get("claim", "")) if isinstance(claim, Mapping) else str(claim))


def _columns_of(curve: Tree, columns: Any, where: str) -> Tree:
    """Return the columns of a curve."""
    if columns:
        raise UserError(f"{where} has columns and a curve; write one of them")
    [key, *more], [values, *_] = curve.keys(), curve.values()
    numbers = values if isinstance(values, list) else []
    plain = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
    if more or len(numbers) < 2 or not plain or sorted(set(numbers)) != numbers:
        raise UserError(
            f"{where}.curve is {shown(curve)}, expected one key and at least two numbers in "
            "ascending order, for example {algorithm.lambda: [0, 1, 7]}"
        )
    if wrong := _wrong_keys({key: None}):
        raise UserError(f"{where}.curve: {wrong}")
    return {f"{key.rpartition('.')[2]}={value}": {key: value} for value in numbers}


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
    if wrong := _wrong_keys(_without_plugins(given)):
        raise UserError(f"{where}: {wrong}")
    if study.experiment is None:
        raise UserError(f"{where}.experiment is missing; name the experiment that is swept")
    rows = {ALL: RowPlan(label=ALL)} if is_sweep else study.rows
    bases = _bases(study, study.experiment, rows, given.get(PLUGINS), plugins)
    of_experiment = is_sweep or label == PRINTED
    select = study.select or _select(bases[study.experiment] if of_experiment else {})
    rows = _with_spaces(study, rows, where, is_sweep=is_sweep)
    claims = _default_claims(study, rows) if study.claims is None else study.claims
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
        tuning=_tuning(study, is_sweep=is_sweep),
        claims=[] if is_sweep or label == PRINTED else claims,
        **{key: getattr(study, key) for key in AS_THEY_ARE},
    )
    _check_plan(plan, where)
    return plan


AS_THEY_ARE = ("metrics", "report", "at", "paper", "glosses", "confidence", "max_concurrent",
               "hours", "left_out")  # fmt: skip
"""Keys of a study that its plan has unchanged."""


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


def _select(base: Tree) -> Select:
    """Return the images on which an experiment chooses rounds."""
    report = override({"report": base.get("report", {})}, ())["report"]
    return validate(ReportConfig, report, "report").select


def _tuning(study: StudyKeys, *, is_sweep: bool) -> Tuning:
    """Return the budget: of a sweep that draws configurations `SAMPLES`."""
    draws = is_sweep and study.tuning.search != "grid"
    count = study.tuning.configurations or (SAMPLES if draws else None)
    return study.tuning.model_copy(update={"configurations": count})


def _check_plan(plan: StudyPlan, where: str) -> None:
    """Raise an error for settings that contradict each other, or that the kind lacks."""
    tuning, is_sweep = plan.tuning, plan.is_sweep
    chooses_nothing, asha = plan.select == "nothing", tuning.asha is not None
    wrong = {
        "tuning.asha compares single runs, not means over seeds; give one seed, and run the best "
        "configurations with more, or leave asha out": asha and len(plan.report.seeds) > 1,
        "tuning.asha: Optuna would take a stopped run's last value for its result; use search: "
        "random, or leave asha out": asha and tuning.search == "optuna",
        "tuning.asha is for sweeps; leave it out": asha and not is_sweep,
        "tuning.search: optuna is for sweeps; use random": (
            tuning.search == "optuna" and not is_sweep
        ),
        "tuning.rounds is for tables; set rounds": is_sweep and tuning.rounds is not None,
        "select: nothing is for sweeps": chooses_nothing and not is_sweep,
        "tuning.configurations is null; set the budget of every row": (
            not is_sweep and tuning.configurations is None
        ),
        "select: nothing needs asha: null": chooses_nothing and asha,
        "select: nothing needs at: final": chooses_nothing and plan.at != "final",
        "select: nothing needs search: grid": chooses_nothing and tuning.search != "grid",
    }
    for sentence, applies in wrong.items():
        if applies:
            raise UserError(f"{where}: {sentence}")
    if tuning.at is not None and tuning.at not in plan.columns:
        near = nearest(tuning.at, plan.columns)
        raise UserError(f"{where}.tuning.at: there is no column {shown(tuning.at)}.{near}")
    _check_overlaps(plan, where)
    _check_metrics(plan, where)
    _check_claims(plan, where)


# --- rows and columns -----------------------------------------------------------------------------


def _with_spaces(
    study: StudyKeys, rows: Mapping[str, RowPlan], where: str, *, is_sweep: bool
) -> dict[str, RowPlan]:
    """Return the rows, each with its method, title and whole space."""
    space = study.space or {}
    if is_sweep and not space:
        raise UserError(
            f"{where}.space is empty; name what is swept, for example algorithm.lambda: "
            "{grid: [1, 7]}"
        )
    plans = {}
    for name, row in rows.items():
        at = where if is_sweep else f"{where}.rows.{name}"
        check_row_name(name, where)
        of = _explained(name, row, rows, at)
        if row.algorithm is not None and not isinstance(row.algorithm, str | Mapping):
            raise UserError(f"{at}.algorithm is {shown(row.algorithm)}, expected a method")
        if wrong := _wrong_keys(_without_plugins(row.set)):
            raise UserError(f"{at}.set: {wrong}")
        axes = _axes(row, rows, space, at)
        check_space(axes, study.tuning.search, at)
        if not is_sweep and study.tuning.search == "grid":
            _check_effort(axes, study.tuning, at)
        method = row.algorithm
        if method is None and name in registry("algorithm").names():
            method = name
        changes = {"algorithm": method, "space": axes, "of": of}
        changes |= {"set": _without_plugins(row.set), "label": row.label or _title(name, method)}
        plans[name] = row.model_copy(update=changes)
    return plans


def _title(name: str, algorithm: Any) -> str:
    """Return the title of a row's method if the row is named as the method; otherwise its name."""
    from fedray.core import algorithms

    method = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
    method = method or name
    if spelled(str(method)) != spelled(name) or method not in algorithms.names():
        return name
    return str(getattr(algorithms.get(method), "title", name))[:45]


def _explained(name: str, row: RowPlan, rows: Mapping[str, RowPlan], where: str) -> str | None:
    """Check the rows that a row names; return the row whose gain a control is to explain."""
    for key in ("of", "over", "tuned_as"):
        other = getattr(row, key)
        if other is not None and other not in rows:
            raise UserError(f"{where}.{key}: there is no row {shown(other)}.{nearest(other, rows)}")
    explained = (row.of or next(iter(rows))) if row.control else None
    if explained == name:
        raise UserError(f"{where}: a control explains another row; name it in of:")
    if row.over is not None and row.over in (name, explained):
        raise UserError(f"{where}.over is {row.over}; name the row over which {explained} gains")
    return explained


def _axes(row: RowPlan, rows: Mapping[str, RowPlan], space: Tree, where: str) -> Tree:
    """Return a row's search space: the study's merged with the row's, or with its leader's."""
    if row.tuned_as is not None:
        leader = rows[row.tuned_as]
        if row.space or leader.tuned_as is not None:
            raise UserError(
                f"{where}.tuned_as takes over the choice of row {row.tuned_as}, which must tune by "
                "itself; leave out the space of this row"
            )
        row = leader
    return {key: tree for key, tree in {**space, **row.space}.items() if tree is not None}


def _check_effort(space: Tree, tuning: Tuning, where: str) -> None:
    """Raise an error for a grid that exceeds the budget."""
    points = len(grid(parse_space(space)))
    if points > (tuning.configurations or MOST_CONFIGURATIONS):
        raise UserError(
            f"{where}.space is a grid of {points} configurations, and tuning.configurations="
            f"{tuning.configurations} is the budget of every row; raise it, list fewer values, or "
            "use tuning.search: random"
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
        if source in (f"column {MEAN}", f"column {EACH}"):
            raise UserError(f"{where}: the name of {source} is reserved for claims; rename it")
        if key := _overlap(keys, given):
            more = "report.rounds or the command line" if key == "rounds" else "the command line"
            raise UserError(f"{where}: {source} sets {key}, and so does {more}; leave one out")


def _overlap(keys: Iterable[str], others: Iterable[str]) -> str | None:
    """Return the first key that equals, contains or is contained in one of the others."""
    for key in keys:
        if any(f"{o}.".startswith(f"{key}.") or f"{key}.".startswith(f"{o}.") for o in others):
            return key
    return None


# --- metrics and claims ---------------------------------------------------------------------------


def _default_claims(study: StudyKeys, rows: Mapping[str, RowPlan]) -> list[Any]:
    """Return the default claims: each method is better than each baseline, by the first metric."""
    sign = "<" if _less_is_better(study.metrics[0]) else ">"
    methods = [n for n in rows if n not in study.baselines and rows[n].control is None]
    return [f"{name} {sign} {other}" for name in methods for other in study.baselines]


def _check_metrics(plan: StudyPlan, where: str) -> None:
    """Raise an error for a row's metrics that the table lacks, or null for one that it needs."""
    metrics, needed = plan.metrics, [plan.metrics[0], plan.choose]
    for name, row in plan.rows.items():
        if row.control and _less_is_better(metrics[0]):
            raise UserError(
                f"{where}.rows.{name}.control: smaller values of {metrics[0]}, the table's first "
                "metric, are better, but controls need a metric where larger is better; put "
                "such a metric first"
            )
        for metric, row_metric in row.metrics.items():
            if metric not in [*metrics, *needed]:
                raise UserError(
                    f"{where}.rows.{name}.metrics: the table has no metric {shown(metric)}."
                    f"{nearest(metric, [*metrics, *needed])}"
                )
            if row_metric is None and metric in needed:
                raise UserError(
                    f"{where}.rows.{name}.metrics: the table compares or chooses by {metric}, so "
                    "every row needs it; name the row's metric instead of null, or leave the row "
                    "out"
                )


def _claims_of_file(plan: StudyPlan) -> list[Claim]:
    return parse_claims(plan.claims, list(plan.rows), list(plan.columns), plan.metrics)


def _check_claims(plan: StudyPlan, where: str) -> None:
    """Raise an error for claims that compare different units or use a metric that a row lacks."""
    for claim in _claims_of_file(plan):
        units = [find_metric(name, known_metrics()) for name in (claim.metric, claim.than)]
        if len({declaration.unit for declaration in units if declaration is not None}) > 1:
            raise UserError(f"{where}.claims: {shown(claim.text)} compares different units")
        for side, metric in ((claim.better, claim.metric), (claim.worse, claim.than)):
            if plan.rows[side.row].metrics.get(metric, metric) is None:
                raise UserError(
                    f"{where}.claims: {shown(claim.text)} is about {metric}, which row {side.row} "
                    "does not have (metrics: null); leave the claim out"
                )


def _less_is_better(name: str) -> bool:
    metric = find_metric(name, known_metrics())
    return metric is not None and metric.direction == "min"
