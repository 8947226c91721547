"""Read a study's file, in tune/ (sweeps) or tune/tables/ (tables), and return its plan.

All keys but `rows` have defaults: a table of five lines compares a new method with three baselines
on digits. A sweep is one experiment in many configurations. `extends` names the study that the
file's other keys change. A scale's keys are laid over those of the file, and the command line's
over both, before the whole is validated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, StrictBool

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
    MOST_SEEDS,
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


class Scale(Frozen):
    """The settings that differ at one scale.

    Keys of `set`, `tuning` and `report` are laid over the study's; the others replace them.
    """

    experiment: str | None = None
    """Replaces the study's experiment."""
    set: Keys = Field(default_factory=dict)
    """Keys laid over those of the study."""
    space: Tree | None = None
    """Replaces the study's space."""
    metrics: list[str] | None = None
    """Replaces the study's metrics."""
    select: Select | None = None
    """Replaces the images that choose rounds and configurations."""
    tuning: Tree = Field(default_factory=dict)
    """Keys laid over those of `tuning`."""
    report: Tree = Field(default_factory=dict)
    """Keys laid over those of `report`."""
    max_concurrent: int | None = Field(None, ge=1, le=100_000)
    """Concurrent runs; None: as many as the cluster holds."""
    hours: float | None = Field(None, gt=0, le=1e6)
    """Approximate duration on one core; printed before the study starts."""
    left_out: str = Field("", max_length=1000)
    """Parts of the paper's table that this scale leaves out."""


class TableScale(Scale):
    """The settings of a table that differ at one scale."""

    rows: Tree = Field(default_factory=dict)
    """Keys of rows that override the table's; null removes a row."""
    columns: Tree | None = None
    """Replaces the table's columns or curve."""
    curve: Tree | None = None
    """Replaces the table's curve or columns."""


class StudyKeys(Frozen):
    """The keys of a study's file that sweeps and tables have."""

    answers: str = Field("", max_length=500)
    """The table, figure or question that the study answers; empty: how the methods compare."""
    items: list[PaperItem] = Field(default_factory=list)
    """Items of papers that the study answers."""
    experiment: str | None = None
    """A shipped experiment or a YAML file that rows and columns change. A table's default is
    fedavg_digits."""
    set: Keys = Field(default_factory=dict)
    """Keys of the experiment, for every cell."""
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
    """`configurations`, `rounds`, `search`, `extend`: see `Tuning`."""
    report: Reporting = Reporting()
    """`seeds`, `rounds`, `looks`: see `Reporting`."""
    scales: Tree = Field(default_factory=lambda: {"laptop": {}})
    """laptop: minutes; desktop: a night on a few cores; paper: GPUs; printed: what differs from the
    rule of `fedray.studies.printed`. See `Scale` and `TableScale`."""


class SweepTuning(Tuning):
    """The budget of a sweep, which extends no grid."""

    configurations: int | None = Field(None, ge=1, le=MOST_CONFIGURATIONS)
    extend: StrictBool = False


class SweepReporting(Reporting):
    """The runs of a sweep, with one seed by default."""

    seeds: list[int] = Field(default_factory=lambda: [0], max_length=MOST_SEEDS)


class SweepKeys(StudyKeys):
    """A file in tune/."""

    tuning: SweepTuning = SweepTuning()
    report: SweepReporting = SweepReporting()


class TableKeys(StudyKeys):
    """A file in tune/tables/."""

    rows: dict[str, RowPlan]
    """Methods by name: `mine: {algorithm: {name: fedtsp, lambda: 7}}`, or `mine: fedtsp`. A row
    without an algorithm whose name is an algorithm uses it."""
    baselines: list[str] = Field(default_factory=lambda: list(BASELINES))
    """Algorithms that become rows below those of `rows`."""
    columns: dict[str, Keys] = Field(default_factory=dict)
    """Settings by name, each a mapping of the experiment's keys that it sets; empty: one column."""
    curve: Tree = Field(default_factory=dict)
    """Instead of columns, one key and its numbers: `algorithm.lambda: [0, 1, 7]` makes the columns
    lambda=0, lambda=1 and lambda=7, and the figure a curve."""
    select: Literal["validation", "test"] | None = None
    """As in a sweep, which may also choose nothing."""
    claims: list[Any] | None = None
    """Inequalities between cells, see `fedray.results.claims`; None: each method of `rows` is
    better than each baseline."""
    paper: PaperNumbers | None = None
    """`source` and `numbers`: see `PaperNumbers`."""
    glosses: dict[str, str] = Field(default_factory=dict)
    """Sentences about rows or columns, by name, printed below the table."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Confidence level of the intervals; verdicts err with probability 1 - confidence at most."""


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
    if kind == "sweep":
        only_tables = TableKeys.model_fields.keys() - SweepKeys.model_fields.keys()
        for key in (key for key in [*tree, *asked] if key in only_tables):
            raise UserError(f"{where}: {key} is for tables; leave it out")
    else:
        tree = _with_row_keys(tree, where)
    study = validate(SweepKeys if kind == "sweep" else TableKeys, tree, where)
    scales = {label: _scale(label, of_it, kind, where) for label, of_it in study.scales.items()}
    if not scales:
        raise UserError(f"{where}.scales is empty; leave it out, or give laptop: {{}}")
    if scale is not None and scale not in scales:
        more = [PRINTED] if can_be_printed(scales) else []
        only = ", ".join(dict.fromkeys([*scales, *more]))
        raise UserError(f"{where} has no {scale} scale, only {only}")
    label = scale or next(iter(scales))
    return _plan_scale(kind, path.stem, label, scales[label], tree, asked, plugins, rows)


def _scale(label: str, tree: Any, kind: Kind, where: str) -> Scale:
    if label not in SCALES:
        raise UserError(
            f"{where}.scales: {shown(label)} is none of {', '.join(SCALES)}."
            f"{nearest(label, SCALES)}"
        )
    model = Scale if kind == "sweep" else TableScale
    return validate(model, {} if tree is None else tree, f"{where}.scales.{label}")


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


# --- one scale ------------------------------------------------------------------------------------


def _plan_scale(
    kind: Kind,
    name: str,
    label: str,
    scale: Scale,
    tree: Tree,
    asked: Tree,
    plugins: Sequence[str],
    picked: Sequence[str] = (),
) -> StudyPlan:
    """Return the checked plan of one scale; loads the study's plug-ins."""
    where, given = f"{kind} {name}", asked.get("set", {})
    model = SweepKeys if kind == "sweep" else TableKeys
    study = validate(model, _laid(tree, scale, asked, picked, where), where)
    if wrong := _wrong_keys(_without_plugins(given)):
        raise UserError(f"{where}: {wrong}")
    if kind == "sweep" and study.experiment is None:
        raise UserError(f"{where}.experiment is missing; name the experiment that is swept")
    experiment = study.experiment or "fedavg_digits"
    rows = study.rows if isinstance(study, TableKeys) else {ALL: RowPlan(label=ALL)}
    bases = _bases(study, experiment, rows, given.get(PLUGINS), plugins)
    of_experiment = kind == "sweep" or label == PRINTED
    select = study.select or _select(bases[experiment] if of_experiment else {})
    rows = _with_spaces(study, rows, where)
    plan = StudyPlan(
        kind=kind,
        name=name,
        scale=label,
        answers=study.answers or f"how {', '.join(rows)} compare",
        experiment=experiment,
        bases=bases,
        set=_without_plugins(study.set),
        given=_without_plugins(given),
        rows=rows,
        metrics=study.metrics,
        choose=study.choose or study.metrics[0],
        select=select,
        validation_fraction=study.validation_fraction if select == "validation" else None,
        tuning=_tuning(study),
        report=Reporting(**dict(study.report)),
        at=study.at,
        **_table_parts(study, rows, tree, label, where),
        **scale.model_dump(include={"max_concurrent", "hours", "left_out"}),
    )
    _check_plan(plan, where)
    return _with_baselines(plan, where)


def _laid(tree: Tree, scale: Scale, asked: Tree, picked: Sequence[str], where: str) -> Tree:
    """Return a file's content with the keys of a scale, then of the command line, laid over it.

    Args:
        tree: the file, validated.
        scale: the scale.
        asked: the sorted keys of the command line.
        picked: the rows to keep; empty: all.
        where: the study, for messages.
    """
    laid, changes = dict(tree), scale.model_dump(exclude_unset=True, exclude={"rows", *OF_SCALES})
    if changes.get("columns") is not None or changes.get("curve") is not None:
        laid |= {"columns": {}, "curve": {}}
    for keys in (changes, {key: value for key, value in asked.items() if key != "set"}):
        for key, value in keys.items():
            if key in ("set", "tuning", "report"):
                laid[key] = {**laid.get(key, {}), **value}
            elif value is not None:
                laid[key] = value
    if isinstance(scale, TableScale):
        laid |= _laid_rows(laid, scale.rows, picked, where)
        if laid.get("curve"):
            laid["columns"] = _columns_of(laid["curve"], laid.get("columns"), where)
    elif picked:
        raise UserError(f"{where} has no row {shown(picked[0])}, because it is a sweep")
    return laid


OF_SCALES = ("max_concurrent", "hours", "left_out")
"""Keys that only scales have."""


def _laid_rows(laid: Tree, changes: Tree, picked: Sequence[str], where: str) -> Tree:
    """Return rows, baselines and claims of a table with the changes of a scale to its rows."""
    rows, names = dict(laid["rows"]), laid.get("baselines", BASELINES)
    baselines = [name for name in names if name not in rows]
    rows |= {name: {"algorithm": name} for name in baselines}
    for name, tree in changes.items():
        if name not in rows:
            raise UserError(
                f"{where}: a scale changes row {shown(name)}, which the table does not have."
                f"{nearest(name, rows)}"
            )
        rows[name] = {**rows[name], **({} if tree is None else _row_keys(name, tree, where))}
    for name in picked:
        if name not in rows:
            raise UserError(f"{where} has no row {shown(name)}.{nearest(name, rows)}")
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


def _with_row_keys(tree: Tree, where: str) -> Tree:
    """Return a table's file with rows that are written as keys."""
    rows = tree.get("rows")
    if not isinstance(rows, Mapping):
        return tree  # refused
    if not rows:
        raise UserError(f"{where}.rows is empty; name a method, for example rows: {{fedtsp: }}")
    return {**tree, "rows": {name: _row_keys(name, row, where) for name, row in rows.items()}}


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


def _tuning(study: StudyKeys) -> Tuning:
    """Return the budget: of a sweep that draws configurations `SAMPLES`."""
    tuning = Tuning(**dict(study.tuning))
    count = tuning.configurations
    if count is None and isinstance(study, SweepKeys) and tuning.search != "grid":
        count = SAMPLES
    return tuning.model_copy(update={"configurations": count})


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
    _check_tuned(plan, where)
    _check_columns(plan, where)
    _check_metrics(plan, where)
    _check_claims(plan, where)


# --- rows and columns -----------------------------------------------------------------------------


def _with_spaces(study: StudyKeys, rows: Mapping[str, RowPlan], where: str) -> dict[str, RowPlan]:
    """Return the rows, each with its method, title and whole space."""
    is_sweep, space = isinstance(study, SweepKeys), study.space
    if is_sweep and not space:
        raise UserError(
            f"{where}.space is empty; name what is swept, for example algorithm.lambda: "
            "{grid: [1, 7]}"
        )
    if space is None:
        space = {"lr": {"grid": [0.02, 0.06, 0.2]}}
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


def _with_baselines(plan: StudyPlan, where: str) -> StudyPlan:
    """Return the plan; a control without `over` gets the only row that its method is to beat."""
    rows, claims = dict(plan.rows), _claims_of_file(plan)
    for name, row in plan.rows.items():
        beaten = {
            claim.worse.row
            for claim in claims
            if claim.better.rows == [row.of] and claim.worse.other is None
        }
        beaten = {other for other in beaten - {row.of} if not rows[other].control}
        if not row.control or row.over is not None or not beaten:
            continue
        if len(beaten) > 1:
            raise UserError(
                f"{where}.rows.{name}: {row.of} is claimed to beat {', '.join(sorted(beaten))}; "
                "name in over: the one over which its gain is measured"
            )
        rows[name] = row.model_copy(update={"over": beaten.pop()})
    return plan.model_copy(update={"rows": rows})


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


def _check_tuned(plan: StudyPlan, where: str) -> None:
    """Raise an error if a tuned key is also set by a row, a column or the command line."""
    set_here = {over: over for over in plan.given}
    set_here |= {key: over for over, value in plan.given.items() for key in flatten({over: value})}
    for name, row in plan.rows.items():
        for_row = "" if name == ALL else f" for row {name}"
        tuned = [key for axis in parse_space(row.space) for key in axis.keys]
        for key in filter(set_here.__contains__, tuned):
            over = set_here[key]
            raise UserError(
                f"{where}: {key} is tuned{for_row}; leave {over}={plan.given[over]} out, or "
                "change the space in the file"
            )
        sources = {f"column {column}": keys for column, keys in plan.columns.items()}
        sources[f"{where}.rows.{name}.set"] = row.set
        for source, source_keys in sources.items():
            for key in (key for key in tuned if _overlapping_keys(key, source_keys)):
                raise UserError(
                    f"{where}: {key} is tuned{for_row}, and {source} sets it; leave one out "
                    f"(`space: {{{key}: null}}` in the row tunes all else)"
                )


def _overlapping_keys(key: str, keys: Iterable[str]) -> list[str]:
    """Return the keys that equal `key`, contain it or are contained in it."""
    return [
        other
        for other in keys
        if f"{other}.".startswith(f"{key}.") or f"{key}.".startswith(f"{other}.")
    ]


def _check_columns(plan: StudyPlan, where: str) -> None:
    """Raise an error for a reserved name, or if a key of a column is overridden."""
    for column, keys in plan.columns.items():
        if column in (MEAN, EACH):
            raise UserError(
                f"{where}.columns: '{column}' is reserved for claims (on: {column}); rename the "
                "column"
            )
        for key in keys:
            if over := _overlapping_keys(key, plan.given):
                raise UserError(
                    f"{where}: column {column} sets {key}; leave {over[0]}= out, or change the "
                    "columns in the file"
                )
        if "rounds" in keys and plan.report.rounds is not None:
            raise UserError(
                f"{where}: column {column} sets rounds, and report.rounds={plan.report.rounds} "
                "would replace them; leave one of them out"
            )


# --- metrics and claims ---------------------------------------------------------------------------


def _table_parts(
    study: StudyKeys, rows: Mapping[str, RowPlan], tree: Tree, label: str, where: str
) -> Tree:
    """Return what only the plan of a table has, checked: columns, claims, the paper's numbers.

    Glosses and the paper's numbers may name rows and columns of any scale, which `tree` has.
    """
    if not isinstance(study, TableKeys):
        return {"columns": {ALL: {}}}
    named = dict.fromkeys([*tree["rows"], *tree.get("baselines", BASELINES)])
    names = dict.fromkeys([*named, *_columns_in(tree)])
    for name in study.glosses:
        if name not in names:
            near = nearest(name, names)
            raise UserError(f"{where}.glosses: there is no row or column {shown(name)}.{near}")
    if study.paper is not None:
        study.paper.check([*named], where)
    claims = study.claims if study.claims is not None else _default_claims(study, rows)
    return {
        "columns": {n: _without_plugins(of) for n, of in study.columns.items()} or {ALL: {}},
        "curve": next(iter(study.curve), None),
        "claims": [] if label == PRINTED else claims,
        **{key: getattr(study, key) for key in ("paper", "glosses", "confidence")},
    }


def _columns_in(tree: Tree) -> Iterator[str]:
    """Yield the names of the columns at all scales of a file."""
    for part in (tree, *filter(None, tree.get("scales", {}).values())):
        yield from part.get("columns") or ()
        for key, values in (part.get("curve") or {}).items():
            yield from (f"{key.rpartition('.')[2]}={value}" for value in values)


def _default_claims(study: TableKeys, rows: Mapping[str, RowPlan]) -> list[Any]:
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
