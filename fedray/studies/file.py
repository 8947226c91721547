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
from typing import Any, Literal, NamedTuple

from pydantic import Field

from fedray.base.errors import UserError, nearest, shown
from fedray.base.shipped import folders
from fedray.config import (
    MOST_BYTES,
    Frozen,
    Tree,
    dump_yaml,
    flatten,
    is_record,
    merge,
    read_experiment,
    read_extended,
    validate,
    with_plugins,
)
from fedray.config.registry import registry, spelled
from fedray.results.claims import ALL, EACH, MEAN
from fedray.results.design import PRINTED, RowPlan
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


ONLY_TABLES = ("rows", "baselines", "columns", "curve", "claims", "paper", "glosses")
"""Keys that a sweep has not."""
DEFAULTS: Mapping[str, Tree] = {
    "sweep": {"tuning": {"configurations": None}, "report": {"seeds": [0]}},
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
        laid = _lay(kind, tree, [scales[label] or {}, line])
        space = laid.pop("space", {})
        if not isinstance(space, Mapping):
            raise ValueError(f"space is {shown(space)}, expected axes, {{lr: {{grid: [0.1]}}}}")
        left = _lay_rows(laid, rows) if kind == "table" else _lay_row(laid, rows)
        study = validate(
            StudyPlan,
            {"kind": kind, "name": path.stem, "scale": label, "given": given, **laid},
            where,
        )
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return _complete(study, where, space, left, plugins)


def _sort_assignments(pairs: Iterable[tuple[str, Any]], kind: Kind) -> Tree:
    """Sort keys into those of the study (`tuning.*`, `report.*`) and others."""
    assignments: Tree = {"set": {}, "tuning": {}, "report": {}}
    for key, value in pairs:
        part, _, inner = key.partition(".")
        if key == "seed":
            assignments["report"]["seeds"] = seeds_in(value)
        elif part in ("tuning", "report") and inner:
            assignments[part][inner] = value
        elif key == "rounds":
            for phase in ("report", "tuning")[: 1 if kind == "sweep" else 2]:
                assignments[phase]["rounds"] = value
        else:
            assignments["set"].pop(key, None)
            assignments["set"][key] = value
    return assignments


def seeds_in(value: Any) -> list[Any]:
    """Return the seeds of `seed=3`, `seed=0,1,2` and `seed=[0,1,2]`; other values unchanged."""
    if isinstance(value, str):
        entries = [entry.strip() for entry in value.split(",")]
        return [int(entry) if entry.isdecimal() else entry for entry in entries]
    return value if isinstance(value, list) else [value]


# --- layers ---------------------------------------------------------------------------------------


def _lay(kind: Kind, tree: Tree, layers: Sequence[Tree]) -> Tree:
    """Return a file's content with its defaults, and with the keys of layers laid over it.

    Args:
        kind: the kind of study.
        tree: the file.
        layers: a scale, then the command line. Their rows become `changes`.

    Raises:
        ValueError: for keys that a sweep cannot have.
    """
    laid: Tree = {**DEFAULTS[kind], "changes": {}}
    for layer in (tree, *layers):
        if layer.get("columns") is not None or layer.get("curve") is not None:
            laid |= {"columns": {}, "curve": {}}
        for key, value in layer.items():
            if kind == "sweep" and key in ONLY_TABLES:
                raise ValueError(f"{key} is for tables; leave it out")
            if key == "rows" and layer is not tree:
                laid["changes"] |= value or {}
            elif key in LAID and isinstance(value, Mapping):
                laid[key] = {**laid.get(key, {}), **value}
            elif value is not None or key == "validation_fraction":
                laid[key] = value
    return {key: value for key, value in laid.items() if key not in ("items", "scales")}


def _lay_row(laid: Tree, picked: Sequence[str]) -> set[str]:
    """Give a sweep its only row and column; return the rows that are left out, which are none."""
    if picked:
        raise ValueError("a sweep has no rows")
    del laid["changes"]
    laid |= {"rows": {ALL: {"label": ALL}}, "claims": []}
    return set()


def _lay_rows(laid: Tree, picked: Sequence[str]) -> set[str]:
    """Complete the rows, columns and claims of a table's file; return the rows that it leaves out.

    Args:
        laid: the keys, with the `changes` that a scale makes to rows.
        picked: the rows to keep; empty: all.

    Raises:
        ValueError: if there is no row, or no such row.
    """
    rows = {name: _row_keys(name, row) for name, row in (laid.get("rows") or {}).items()}
    if not rows:
        raise ValueError("rows is empty; name a method, for example rows: {fedtsp: }")
    changes, methods = laid.pop("changes"), [name for name in rows if not rows[name].get("control")]
    baselines = laid.pop("baselines", BASELINES)
    rows |= {name: {"algorithm": name} for name in baselines if name not in rows}
    for name in (*changes, *picked):
        if name not in rows:
            raise ValueError(f"there is no row {shown(name)}.{nearest(name, rows)}")
    left = {name for name in rows if picked and name not in picked}
    for name, tree in changes.items():
        rows[name] = rows[name] | ({} if tree is None else _row_keys(name, tree))
        left |= {name} if tree is None else set()
    laid["rows"] = {name: tree for name, tree in rows.items() if name not in left}
    for key, values in (laid.pop("curve", None) or {}).items():
        last = key.rpartition(".")[2]
        laid |= {"curve": key, "columns": {f"{last}={value}": {key: value} for value in values}}
    if "claims" not in laid:
        pairs = [(a, b) for a in methods if a not in baselines for b in baselines]
        less = _less_is_better((laid.get("metrics") or [""])[0])
        laid["claims"] = [{"better": b if less else a, "worse": a if less else b} for a, b in pairs]
    return left


def _row_keys(name: str, tree: Any) -> Tree:
    """Return the keys of a row, which may be written as the name of its method."""
    if tree is None or isinstance(tree, str):
        return {"algorithm": name if tree is None else tree}
    if not isinstance(tree, Mapping):
        raise ValueError(f"rows.{name} is {shown(tree)}, expected a method or its keys")
    return dict(tree)


# --- the plan -------------------------------------------------------------------------------------


def _complete(
    study: StudyPlan, where: str, space: Mapping[str, Any], left: set[str], plugins: Sequence[str]
) -> StudyPlan:
    """Return the plan of a study as its file has it, complete and checked; loads its plug-ins.

    Args:
        study: the study.
        where: its name, for messages.
        space: the search space of every row.
        left: rows of the file that are left out.
        plugins: files and modules in addition to those that the experiments name.
    """
    if study.is_sweep and not space:
        raise UserError(f"{where}.space is missing; a sweep needs experiment and space")
    pairs = [(PLUGINS, {**study.set, **study.given}.get(PLUGINS))]
    named = not is_record(study.experiment)
    base = with_plugins(read_experiment(study.experiment), pairs, plugins, named=named)
    chosen_by_experiment = study.is_sweep or study.is_printed
    own = (base.get("report") or {}) if chosen_by_experiment else {}
    select = study.report.select or own.get("select", "validation")
    draws = study.is_sweep and study.tuning.search != "grid"
    count = study.tuning.configurations or (SAMPLES if draws else None)
    claims = [part for entry in study.claims for part in entry.without(left)]
    plan = study.model_copy(
        update={
            "answers": study.answers or f"how {', '.join(study.rows)} compare",
            "base": base,
            "set": _without_plugins(study.set),
            "given": _without_plugins(study.given),
            "rows": {name: _complete_row(study, name, space, where) for name in study.rows},
            "columns": {n: _without_plugins(of) for n, of in study.columns.items()} or {ALL: {}},
            "choose": study.choose or study.metrics[0],
            "validation_fraction": study.validation_fraction if select == "validation" else None,
            "tuning": study.tuning.model_copy(update={"configurations": count}),
            "report": study.report.model_copy(update={"select": select}),
            "claims": [] if study.is_printed else claims,
            "paper": study.paper and study.paper.complete(),
        }
    )
    _check_plan(plan, where)
    return plan


def _without_plugins(tree: Tree) -> Tree:
    """Return keys without the plug-ins, which are loaded with the experiment."""
    return {key: value for key, value in tree.items() if key != PLUGINS}


def _complete_row(study: StudyPlan, name: str, space: Mapping[str, Any], where: str) -> RowPlan:
    """Return a row with its method, title, whole space, and the row that a control explains."""
    from fedray.core import algorithms

    rows, row = study.rows, study.rows[name]
    at = where if study.is_sweep else f"{where}.rows.{name}"
    if "@" in name:
        raise UserError(f"{at}: claims write `row @ column`; `label:` of the row may have an @")
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
    axes = {key: tree for key, tree in {**space, **leader.space}.items() if tree is not None}
    check_space(axes, study.tuning.search, at)
    budget = study.tuning.configurations
    if not study.is_sweep and study.tuning.search == "grid" and budget:
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
                    f"{where}.claims: {claim.question} is about {metric}, which row {side.row} "
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
