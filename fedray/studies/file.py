"""A study as written in tune/ (sweeps) or tune/tables/ (tables), read into a plan.

Everything but `rows` has a default, so that a table of five lines compares a new method with three
baselines on digits. A file without `rows` is a sweep: one experiment in many configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import Field

from fedray.compare.paired import TestKind
from fedray.config import (
    Frozen,
    ReportConfig,
    Tree,
    find_yaml,
    flatten,
    is_key,
    override,
    read_experiment,
    read_mapping,
    validate,
    with_plugins,
    with_read_plugins,
)
from fedray.errors import UserError, nearest, shown
from fedray.files import check_name
from fedray.records import find_metric
from fedray.registry import registry
from fedray.shipped import folders
from fedray.studies.claims import ALL, EACH, MEAN, Claim, parse_claims, rows_in
from fedray.studies.interim_looks import check_looks, within_seeds
from fedray.studies.plan import (
    PaperNumbers,
    Reporting,
    RowPlan,
    Select,
    StudyPlan,
    Tuning,
    declared,
    renamed,
)
from fedray.studies.space import (
    MOST_CONFIGURATIONS,
    check_no_select,
    check_space,
    grid,
    parse_space,
)

Kind = Literal["sweep", "table"]
SCALES = ("laptop", "desktop", "paper")
PLUGINS = "plugins"
BASELINES = ("local", "fedavg", "fedproto")
"""The methods that a table is compared with that names none."""
SAMPLES = 16
"""Configurations of a sweep that draws them and does not say how many."""


class Row(Frozen):
    """A method, or a control."""

    algorithm: Any = None
    """The method, with its hyper-parameters or without; None: the one that the row is called
    after, or else the experiment's."""
    experiment: str | None = None
    """Another experiment instead of the table's."""
    set: Tree = Field(default_factory=dict)
    """Keys of its experiment."""
    space: Tree = Field(default_factory=dict)
    """What is tuned besides the table's space; null takes an axis of that away."""
    tuned_as: str | None = None
    """The row whose choice it takes over, instead of tuning; for controls, and for figures of a
    hyper-parameter."""
    label: str = Field("", max_length=45)
    """What the table calls it; empty: its name. `glosses` of the table say more."""
    metrics: dict[str, str | None] = Field(default_factory=dict)
    """Where the method has another natural metric than the table: `local_accuracy:
    finetuned_accuracy`. It chooses, too, where the table's one would. null: it has none such."""
    control: str | None = Field(None, min_length=3, max_length=300)
    """Makes the row a control, and says what it would refute if it did as well."""
    of: str | None = None
    """The row that a control is to explain; None: the table's first row."""
    over: str | None = None
    """The row over which that one's gain is to be explained; None: the nearest one that it is
    claimed to be better than."""


class Item(Frozen):
    """A table, figure or scenario of a paper that a study answers."""

    paper: str
    """A file in fedray/papers/."""
    item: str
    """As the paper calls it: "Table 4"."""
    asks: str = ""
    """The question, with data sets and setting."""
    measure: str = ""
    """Which metric, or which file or picture of the runs, holds the answer."""
    offline: str = ""
    """What cannot be run without a network, why, and what is tested instead."""
    then: list[str] = Field(default_factory=list)
    """What reads the study's folder afterwards: `report --metric global_accuracy`."""


class Scale(Frozen):
    """What is different at one scale; everything has the study's value by default."""

    experiment: str | None = None
    """Replaces the study's."""
    set: Tree = Field(default_factory=dict)
    """Overrides the study's."""
    rows: Tree = Field(default_factory=dict)
    """Keys of rows, which override the table's; null removes a row."""
    columns: Tree | None = None
    """Replaces the table's columns or curve."""
    curve: Tree | None = None
    """Replaces the table's curve or columns."""
    space: Tree | None = None
    """Replaces the study's."""
    metrics: list[str] | None = None
    """Replaces the study's."""
    select: Select | None = None
    """Replaces the study's."""
    mean_over: str | None = None
    """Replaces the study's."""
    tuning: Tree = Field(default_factory=dict)
    """Overrides the study's."""
    report: Tree = Field(default_factory=dict)
    """Overrides the study's."""
    max_concurrent: int | None = Field(None, ge=1, le=100_000)
    """Runs at a time; None: as many as the cluster holds."""
    hours: float | None = Field(None, gt=0, le=1e6)
    """About how long it takes, of one core; said before it starts."""
    left_out: str = Field("", max_length=1000)
    """What of the paper's table this scale does not have."""


class Study(Frozen):
    """A file in tune/ or tune/tables/."""

    answers: str = Field("", max_length=500)
    """The table, figure or question that it answers; empty: how the methods compare."""
    items: list[Item] = Field(default_factory=list)
    """What of the papers it answers."""
    experiment: str | None = None
    """A shipped experiment, or a YAML file: what rows and columns change. A table's default is
    fedavg_digits."""
    set: Tree = Field(default_factory=dict)
    """Keys of the experiment, for every cell."""
    rows: Tree | None = None
    """Methods by name: `mine: {algorithm: {name: fedtsp, lambda: 7}}`, or `mine: fedtsp`; one that
    is called after an algorithm and names no other is that algorithm. None: a sweep."""
    baselines: list[str] = Field(default_factory=lambda: list(BASELINES))
    """Algorithms that are rows too, below those of `rows`."""
    columns: Tree = Field(default_factory=dict)
    """Settings by name, each with the experiment's keys that it sets; empty: one column."""
    curve: Tree = Field(default_factory=dict)
    """Instead of columns, one key and its numbers: `algorithm.lambda: [0, 1, 7]` makes the columns
    lambda=0, lambda=1 and lambda=7, and the figure a curve."""
    metrics: list[str] = Field(default_factory=lambda: ["local_accuracy"], min_length=1)
    """What is shown; claims are about the first one, unless they name another."""
    choose: str | None = None
    """By which metric configurations and rounds are chosen; None: by the first one of `metrics`."""
    select: Select | None = None
    """On which images it is chosen; `test` is the papers' habit, and marks every number; `nothing`,
    with at: final, makes a sweep a figure. None: on validation images, and in a sweep as the
    experiment's report.select says."""
    validation_fraction: float | None = Field(0.2, gt=0, lt=1)
    """What clients hold out where the experiment does not say; null where its partition does."""
    at: Literal["best", "final"] = "best"
    """Which round counts: the best one where it is chosen, never round 0, or the last."""
    space: Tree | None = None
    """What is searched for every row, in every column: {grid: [...]}, {choice: [...]}, {uniform:
    [lo, hi]}, {loguniform: [lo, hi]}, {randint: [lo, hi]}, ends included. Keys that vary together
    are written as one, separated by commas: `data.clients, participation: {grid: [[10, 1.0]]}`.
    A table's default is lr: {grid: [0.02, 0.06, 0.2]}."""
    mean_over: str | None = None
    """A key of a sweep's space, such as data.root: configurations are ranked by the mean over its
    values; for a grid."""
    tuning: Tree = Field(default_factory=dict)
    """`configurations`, `rounds`, `search`, `extend`, `once`: see `Tuning`."""
    report: Tree = Field(default_factory=dict)
    """`seeds`, `more`, `rounds`, `looked_at`: see `Reporting`."""
    claims: list[Any] = Field(default_factory=list)
    """Inequalities between cells, see `fedray.studies.claims`; empty: each method of `rows` is
    better than each baseline."""
    paper: Tree | None = None
    """`source` and `numbers`: see `PaperNumbers`."""
    glosses: dict[str, str] = Field(default_factory=dict)
    """A sentence about a row or a column, by its name, below the table."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Of the intervals; a claim is decided where it errs with at most one minus this."""
    test: TestKind = "fixed"
    """`fixed`: Student's paired t-test, corrected for earlier looks at the verdicts; `anytime`: a
    test that finds somewhat less, with which seeds may be added until a claim is decided."""
    scales: Tree = Field(default_factory=lambda: {"laptop": {}})
    """laptop: minutes; desktop: a night on a few cores; paper: GPUs."""

    @property
    def is_sweep(self) -> bool:
        """Return True if it compares no rows."""
        return self.rows is None


def modern(tree: Tree) -> Tree:
    """Return a file's tree with today's keys instead of those that sweeps had.

    `seeds` means `report: {seeds: ...}`; `metric` and a list `columns` mean `metrics`;
    `search`, `num_samples`, `search_seed` and `asha` for keys of `tuning`.
    """
    scales = tree.get("scales")
    first = tree.get("metric")
    found = _modern(tree, first)
    if isinstance(scales, Mapping):
        found["scales"] = {
            label: _modern(scale, first) if isinstance(scale, Mapping) else scale
            for label, scale in scales.items()
        }
    return found


_OF_TUNING = {
    "search": "search",
    "num_samples": "configurations",
    "search_seed": "search_seed",
    "asha": "asha",
}


def _modern(tree: Mapping[str, Any], metric: Any) -> Tree:
    found = dict(tree)
    listed = found.pop("columns", None) if isinstance(found.get("columns"), list) else None
    own = found.pop("metric", None)
    if own is not None or listed is not None:
        found["metrics"] = [own or metric or "local_accuracy", *(listed or ())]
    if "seeds" in found:
        found["report"] = {**(found.get("report") or {}), "seeds": found.pop("seeds")}
    tuning = {new: found.pop(old) for old, new in _OF_TUNING.items() if old in found}
    if tuning or isinstance(found.get("tuning"), Mapping):
        found["tuning"] = {**tuning, **renamed(found.get("tuning") or {})}
    return found


def plan_study(
    kind: Kind,
    name: str,
    pairs: Iterable[tuple[str, Any]] = (),
    scale: str | None = None,
    plugins: Sequence[str] = (),
    samples: int | None = None,
) -> StudyPlan:
    """Find a study, take one scale of it, and lay keys on its experiments.

    `report.seeds=[0,1]` (or `seed=0,1`), `tuning.configurations=2`, `select=test` and the like
    change the study; `rounds=5` is that of both tuning and report.

    Args:
        kind: where a name is looked for first.
        name: a study's name or file.
        pairs: keys and values for the experiment of every cell.
        scale: laptop, desktop or paper; None: the first one that the file has.
        plugins: files and modules besides those that the experiments name.
        samples: number of a sweep's configurations, instead of the file's.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    path = find_yaml(name, folders(f"{kind}s"), kind)
    where = f"{kind} {check_name(path.stem)}"
    study = validate(Study, modern(read_mapping(path)), where)
    scales = {label: _scale(label, tree, where) for label, tree in study.scales.items()}
    if not scales:
        raise UserError(f"{where}.scales is empty; leave it out, or give laptop: {{}}")
    given = {**_assigned(pairs, where), "plugins": plugins}
    if samples is not None:
        given["tuning"]["configurations"] = samples
    if not study.is_sweep:  # a table's scales share its claims and rows
        for label, each in scales.items():
            _planned(study, path.stem, label, each, {"plugins": plugins})
    scale = next(iter(scales)) if scale is None else scale
    if scale not in scales:
        raise UserError(f"{where} has no {scale} scale, only {', '.join(scales)}")
    return _planned(study, path.stem, scale, scales[scale], given)


def _scale(label: str, tree: Any, where: str) -> Scale:
    if label not in SCALES:
        raise UserError(
            f"{where}.scales: {shown(label)} is none of {', '.join(SCALES)}."
            f"{nearest(label, SCALES)}"
        )
    return validate(Scale, {} if tree is None else tree, f"{where}.scales.{label}")


def _assigned(pairs: Iterable[tuple[str, Any]], where: str) -> Tree:
    """Sort what is set: `tuning.*`, `report.*`, `select`, `test` of the study, or experiments'."""
    given: Tree = {"set": {}, "tuning": {}, "report": {}}
    for key, value in pairs:
        part, _, inner = key.partition(".")
        if key == "seed":
            given["report"]["seeds"] = _seeds_in(value)
        elif key in ("select", "report.select"):
            given["select"] = value
        elif key == "test":
            given["test"] = value
        elif part == "tuning" and inner:
            given["tuning"]["once" if inner == "seeds" else inner] = value
        elif part == "report" and inner in Reporting.model_fields:
            given["report"][inner] = value
        elif key == "rounds":
            given["tuning"]["rounds"] = given["report"]["rounds"] = value
        else:
            given["set"].pop(key, None)
            given["set"][key] = value
    return given


def _seeds_in(value: Any) -> list[Any]:
    """Return the seeds of `seed=3`, `seed=0,1,2` and `seed=[0,1,2]`; other values unchanged."""
    if isinstance(value, str):
        entries = [entry.strip() for entry in value.split(",")]
        return [int(entry) if entry.isdecimal() else entry for entry in entries]
    return value if isinstance(value, list) else [value]


def _planned(study: Study, name: str, label: str, scale: Scale, given: Tree) -> StudyPlan:
    """Return one scale of a study, checked; its plug-ins are in use from here on."""
    where = f"{'sweep' if study.is_sweep else 'table'} {name}"
    experiment = _experiment(study, scale, where)
    bases = _bases(study, scale, experiment, given)
    columns, curve = _settings(study, scale, where)
    tuning, report = _phases(study, scale, given, columns, where)
    rows = _rows(study, scale, _space(study, scale), tuning, where)
    metrics = scale.metrics or study.metrics
    choose = study.choose or metrics[0]
    _check_tuned(rows, columns, given.get("set", {}), where)
    _check_metrics(rows, metrics, choose, where)
    select = _select(study, scale, given, bases[experiment], where)
    plan = StudyPlan(
        kind="sweep" if study.is_sweep else "table",
        name=name,
        scale=label,
        answers=study.answers or f"how {', '.join(rows)} compare",
        experiment=experiment,
        bases=bases,
        set=_keys({**study.set, **scale.set}, f"{where}.scales.{label}.set"),
        given=_keys(given.get("set", {}), where),
        rows=rows,
        columns=columns,
        curve=curve,
        metrics=metrics,
        choose=choose,
        select=select,
        validation_fraction=study.validation_fraction if select == "validation" else None,
        at=study.at,
        tuning=tuning,
        report=report,
        claims=_claims(study, rows, columns, metrics, where),
        paper=_paper(study, where),
        confidence=study.confidence,
        test=_test(study, given, where),
        glosses=_glosses(study, where),
        mean_over=scale.mean_over or study.mean_over,
        **scale.model_dump(include={"max_concurrent", "hours", "left_out"}),
    )
    _check_sweep(plan, where)
    return plan


def _experiment(study: Study, scale: Scale, where: str) -> str:
    """Return the experiment that a study's runs are of."""
    experiment = scale.experiment or study.experiment
    if experiment is None and study.is_sweep:
        raise UserError(f"{where}.experiment is missing; name the experiment that is swept")
    return experiment or "fedavg_digits"


def _claims(
    study: Study,
    rows: Mapping[str, RowPlan],
    columns: Mapping[str, Tree],
    metrics: Sequence[str],
    where: str,
) -> list[Any]:
    """Return the claims about the rows of this scale, checked."""
    claims = study.claims or _usual_claims(study, rows)
    claims = _of_rows(claims, rows, list(_all_rows(study, where)))
    _check_claims(parse_claims(claims, list(rows), list(columns), metrics), rows, where)
    return claims


def _bases(study: Study, scale: Scale, experiment: str, given: Tree) -> dict[str, Tree]:
    """Return the experiments that rows change, with the texts of all plug-ins, now in use.

    A resumed study runs these sources, also if the files have changed.
    """
    rows = [*(study.rows or {}).values(), *scale.rows.values()]
    named = [row.get("experiment") for row in rows if isinstance(row, Mapping)]
    texts_of = [name for name in named if isinstance(name, str)]  # others are refused as rows
    names = dict.fromkeys([experiment, *texts_of])
    own = {**study.set, **scale.set, **given.get("set", {})}.get(PLUGINS)
    pairs, more = [(PLUGINS, own)], given.get("plugins", ())
    trees = {name: with_read_plugins(read_experiment(name), pairs, more) for name in names}
    texts = {text["module"]: text for tree in trees.values() for text in tree.get(PLUGINS, ())}
    every = [(PLUGINS, list(texts.values()) or None)]
    return {name: with_plugins(tree, every) for name, tree in trees.items()}


def _select(study: Study, scale: Scale, given: Tree, base: Tree, where: str) -> Select:
    """Return on which images is chosen."""
    asked = given.get("select") or scale.select or study.select
    if asked is None and study.is_sweep:
        tree = override({"report": base.get("report", {})}, ())
        asked = validate(ReportConfig, tree["report"], "report").select
    asked = asked or "validation"
    ways = ("validation", "test", "nothing") if study.is_sweep else ("validation", "test")
    if asked not in ways:
        raise UserError(f"{where}.select is {shown(asked)}, expected {' or '.join(ways)}")
    found: Select = asked
    return found


def _test(study: Study, given: Tree, where: str) -> TestKind:
    """Return how claims are tested."""
    asked: TestKind = given.get("test", study.test)
    if asked not in get_args(TestKind):
        raise UserError(f"{where}.test is {shown(asked)}, expected fixed or anytime")
    return asked


def _space(study: Study, scale: Scale) -> Tree:
    space = study.space if scale.space is None else scale.space
    if space is None:
        return {} if study.is_sweep else {"lr": {"grid": [0.02, 0.06, 0.2]}}
    return space


def _phases(
    study: Study, scale: Scale, given: Tree, columns: Mapping[str, Tree], where: str
) -> tuple[Tuning, Reporting]:
    """Return what is spent on tuning and on the report, of columns that stay what they are."""
    usual: Tree = {}
    if study.is_sweep:
        searched = {**study.tuning, **scale.tuning}.get("search", "grid")
        usual = {"configurations": None if searched == "grid" else SAMPLES, "extend": False}
    laid, asked = dict(given.get("tuning", {})), given.get("report", {})
    if study.is_sweep:
        laid.pop("rounds", None)  # all its runs are of one kind
    tuned = {**usual, **study.tuning, **scale.tuning, **laid}
    tuning = validate(Tuning, tuned, f"{where}.tuning")
    reported = {"seeds": [0]} if study.is_sweep else {}
    report = validate(
        Reporting, {**reported, **study.report, **scale.report, **asked}, f"{where}.report"
    )
    if tuning.once is not None:
        _check_seeds(tuning.once, f"{where}.tuning.once")
    _check_seeds(report.seeds, f"{where}.report" if not study.is_sweep else where)
    if "seeds" in asked and "looked_at" not in asked:
        report = within_seeds(report)
    check_looks(report, where)
    _check_columns(columns, given.get("set", {}), report, where)
    if tuning.at is not None and tuning.at not in columns:
        raise UserError(
            f"{where}.tuning.at: there is no column {shown(tuning.at)}."
            f"{nearest(tuning.at, columns)}"
        )
    return tuning, report


def _check_seeds(seeds: Sequence[Any], where: str) -> None:
    """Refuse seeds that are none, negative or twice there."""
    whole = [seed for seed in seeds if isinstance(seed, int) and not isinstance(seed, bool)]
    bad = len(whole) < len(seeds) or any(not 0 <= seed < 2**63 for seed in whole)
    if bad or not seeds or len(set(seeds)) < len(seeds):
        raise UserError(
            f"{where}: seeds={shown(list(seeds))}, expected different whole numbers from 0, for "
            "example [0]"
        )


def _check_more(plan: StudyPlan, where: str) -> None:
    """Refuse further seeds of a row that is not there, or of a sweep."""
    for row, seeds in plan.report.more.items():
        if plan.is_sweep or row not in plan.rows:
            raise UserError(
                f"{where}.report.more: there is no row {shown(row)}.{nearest(row, plan.rows)}"
            )
        _check_seeds(seeds, f"{where}.report.more.{row}")


def _check_sweep(plan: StudyPlan, where: str) -> None:
    """Refuse what a sweep cannot choose by, and what only a sweep may have."""
    tuning, single = plan.tuning, len(plan.report.seeds) == 1
    wrong = [
        (plan.is_sweep, tuning.rounds is not None, "tuning.rounds is for tables; set rounds"),
        (plan.is_sweep, tuning.once is not None, "tuning.once is for tables; leave it out"),
        (
            plan.is_sweep,
            plan.test != "fixed",
            "test is for tables, which have claims; leave it out",
        ),
        (not plan.is_sweep, tuning.search == "tpe", "tuning.search: tpe is for sweeps; use random"),
        (not plan.is_sweep, tuning.asha is not None, "tuning.asha is for sweeps; leave it out"),
        (not plan.is_sweep, plan.mean_over is not None, "mean_over is for sweeps; use columns"),
        (tuning.asha is not None, not single, "tuning.asha stops single runs; give one seed"),
        (plan.select == "nothing", plan.at != "final", "select: nothing needs at: final"),
        (plan.select == "nothing", tuning.search != "grid", "select: nothing needs search: grid"),
        (plan.select == "nothing", tuning.asha is not None, "select: nothing needs asha: null"),
        (plan.mean_over is not None, tuning.search != "grid", "mean_over needs search: grid"),
        (plan.mean_over is not None, tuning.asha is not None, "mean_over needs asha: null"),
    ]
    for applies, is_wrong, what in wrong:
        if applies and is_wrong:
            raise UserError(f"{where}: {what}")
    _check_more(plan, where)
    if not plan.is_sweep:
        return
    space = plan.rows[ALL].space
    if not space:
        raise UserError(
            f"{where}.space is empty; name what is swept, for example algorithm.lambda: "
            "{grid: [1, 7]}"
        )
    if plan.mean_over is not None and (plan.mean_over not in space or len(space) < 2):
        raise UserError(
            f"{where}.mean_over={plan.mean_over} is to be one of several keys of the space."
            f"{nearest(plan.mean_over, list(space))}"
        )


def _paper(study: Study, where: str) -> PaperNumbers | None:
    if study.paper is None:
        return None
    paper = validate(PaperNumbers, study.paper, f"{where}.paper")
    paper.check(list(_all_rows(study, where)), where)
    return paper


def _glosses(study: Study, where: str) -> dict[str, str]:
    """Return those of rows and columns, also of other scales."""
    scales = [validate(Scale, tree or {}, where) for tree in study.scales.values()]
    settings = [_settings(study, scale, where)[0] for scale in (Scale(), *scales)]
    known = [*_all_rows(study, where), *(column for columns in settings for column in columns)]
    for name in study.glosses:
        if name not in known:
            raise UserError(
                f"{where}.glosses: there is no row or column {shown(name)}.{nearest(name, known)}"
            )
    return study.glosses


def _settings(study: Study, scale: Scale, where: str) -> tuple[dict[str, Tree], str | None]:
    """Return the columns of a scale, and the key of its curve."""
    columns, curve = study.columns, study.curve
    if scale.columns is not None or scale.curve is not None:
        columns, curve = scale.columns or {}, scale.curve or {}
    if not curve:
        return _columns(columns, where), None
    if columns:
        raise UserError(f"{where} has columns and a curve; write one of them")
    key, values = next(iter(curve.items()))
    numbers = values if isinstance(values, list) else []
    plain = all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)
    if len(curve) > 1 or len(numbers) < 2 or not plain or sorted(set(numbers)) != numbers:
        raise UserError(
            f"{where}.curve is {shown(curve)}, expected one key and at least two numbers in "
            "ascending order, for example {algorithm.lambda: [0, 1, 7]}"
        )
    name = key.rpartition(".")[2]
    return _columns({f"{name}={value}": {key: value} for value in numbers}, where), key


def _columns(columns: Tree, where: str) -> dict[str, Tree]:
    """Return the settings by name; one that sets nothing if there are none."""
    for name, keys in columns.items():
        if name in (MEAN, EACH):
            raise UserError(
                f"{where}.columns: '{name}' is what a claim says of columns; call it otherwise"
            )
        if not isinstance(keys, dict):
            raise UserError(
                f"{where}.columns.{name} is {shown(keys)}, expected the keys that it sets, for "
                "example {data.partition.alpha: 0.1}"
            )
        _keys(keys, f"{where}.columns.{name}")
    return dict(columns) or {ALL: {}}


def _keys(keys: Tree, where: str) -> Tree:
    """Return an experiment's keys, checked; plug-ins are with the bases."""
    keys = {key: value for key, value in keys.items() if key != PLUGINS}
    if wrong := [key for key in keys if not is_key(key)]:
        raise UserError(f"{where}: {shown(wrong[0])} is no key")
    if "seed" in keys:
        raise UserError(f"{where}: a study has its own seeds; write report: {{seeds: [...]}}")
    check_no_select(keys, where)
    return keys


# --- rows -----------------------------------------------------------------------------------------


def _all_rows(study: Study, where: str) -> dict[str, Row]:
    """Return the file's rows and its baselines, as written; a sweep's one."""
    if study.rows is None:
        return {ALL: Row()}
    if not study.rows:
        raise UserError(f"{where}.rows is empty; name a method, for example rows: {{fedtsp: }}")
    found = {name: _row(name, tree, f"{where}.rows.{name}") for name, tree in study.rows.items()}
    for name in study.baselines:
        found.setdefault(name, Row(algorithm=name))
    return found


def _row(name: str, tree: Any, where: str) -> Row:
    if tree is None:
        return Row(algorithm=name)
    row = validate(Row, _as_keys(tree, where), where)
    if row.algorithm is not None and not isinstance(row.algorithm, str | Mapping):
        raise UserError(f"{where}.algorithm is {shown(row.algorithm)}, expected a method")
    _keys(row.set, f"{where}.set")
    if row.algorithm is None and name in registry("algorithm").names():
        return row.model_copy(update={"algorithm": name})
    return row


def _as_keys(tree: Any, where: str) -> Tree:
    """Return the keys of a row, which may be written as its method alone."""
    if isinstance(tree, str):
        return {"algorithm": tree}
    if not isinstance(tree, Mapping):
        raise UserError(f"{where} is {shown(tree)}, expected a method, or its keys")
    return dict(tree)


def _rows(
    study: Study, scale: Scale, space: Tree, tuning: Tuning, where: str
) -> dict[str, RowPlan]:
    """Return the rows of a scale, each with its whole space."""
    written = _all_rows(study, where)
    for name, over in scale.rows.items():
        if name not in written:
            raise UserError(
                f"{where}: a scale changes row {shown(name)}, which is not there."
                f"{nearest(name, written)}"
            )
        if over is None:
            del written[name]
        else:
            laid = _as_keys(over, f"{where}.rows.{name}")
            written[name] = _row(name, {**written[name].model_dump(), **laid}, f"{where}.{name}")
    first = next(iter(written), None)
    found = {}
    for name, row in written.items():
        at = f"{where}.rows.{name}"
        _check_named(row, written, at)
        axes = _axes(row, written, space, at)
        _check_effort(axes, tuning, study.is_sweep, where if study.is_sweep else at)
        found[name] = RowPlan(
            algorithm=row.algorithm,
            experiment=row.experiment,
            set=row.set,
            space=axes,
            label=row.label or name,
            metrics=row.metrics,
            control=row.control,
            of=_explained(name, row, first, at),
            over=row.over,
            tuned_as=row.tuned_as,
        )
    return found


def _check_named(row: Row, rows: Mapping[str, Row], where: str) -> None:
    for key in ("of", "over", "tuned_as"):
        other = getattr(row, key)
        if other is not None and other not in rows:
            raise UserError(f"{where}.{key}: there is no row {shown(other)}.{nearest(other, rows)}")


def _explained(name: str, row: Row, first: str | None, where: str) -> str | None:
    """Return the row whose gain a control is to explain."""
    explained = (row.of or first) if row.control else None
    if explained == name:
        raise UserError(f"{where}: a control explains another row; name it in of:")
    if row.over is not None and row.over in (name, explained):
        raise UserError(f"{where}.over is {row.over}; name the row over which {explained} gains")
    return explained


def _axes(row: Row, rows: Mapping[str, Row], space: Tree, where: str) -> Tree:
    """Return what is tuned for a row: the study's space and its own, or those of its leader."""
    if row.tuned_as is not None:
        leader = rows[row.tuned_as]
        if row.space or leader.tuned_as is not None:
            raise UserError(
                f"{where}.tuned_as takes over what row {row.tuned_as} tunes; that row must tune "
                "by itself, and this one has no space of its own"
            )
        row = leader
    return {key: tree for key, tree in {**space, **row.space}.items() if tree is not None}


def _check_effort(space: Tree, tuning: Tuning, is_sweep: bool, where: str) -> None:
    """Refuse a space that the search cannot walk, or not within the budget of all rows."""
    check_space(space, tuning.search, where)
    points, budget = len(grid(parse_space(space))) if tuning.search == "grid" else 0, tuning
    if not is_sweep and points > (budget.configurations or MOST_CONFIGURATIONS):
        raise UserError(
            f"{where}.space is a grid of {points} configurations, and tuning.configurations="
            f"{tuning.configurations} is the budget of every row; raise it, list fewer values, or "
            "use tuning.search: random"
        )


def _check_tuned(
    rows: Mapping[str, RowPlan], columns: Mapping[str, Tree], given: Tree, where: str
) -> None:
    """Refuse to tune what a row, a column or the command line sets: none would be what it says."""
    set_here = {over: over for over in given}
    set_here |= {key: over for over, value in given.items() for key in flatten({over: value})}
    for name, row in rows.items():
        for_row = "" if name == ALL else f" for row {name}"
        tuned = [key for axis in row.axes for key in axis.keys]
        for key in filter(set_here.__contains__, tuned):
            over = set_here[key]
            raise UserError(
                f"{where}: {key} is tuned{for_row}; leave {over}={given[over]} out, or change "
                "the space in the file"
            )
        said = {f"column {column}": keys for column, keys in columns.items()}
        said[f"{where}.rows.{name}.set"] = row.set
        for what, keys in said.items():
            for key in (key for key in tuned if _over(key, keys)):
                raise UserError(
                    f"{where}: {key} is tuned{for_row}, and {what} sets it; leave one out "
                    f"(`space: {{{key}: null}}` in the row tunes all else)"
                )


def _over(key: str, others: Iterable[str]) -> list[str]:
    """Return the keys that set the same as `key`, a part of it, or what it is a part of."""
    return [
        each
        for each in others
        if f"{each}.".startswith(f"{key}.") or f"{key}.".startswith(f"{each}.")
    ]


def _check_columns(columns: Mapping[str, Tree], given: Tree, report: Reporting, where: str) -> None:
    """Refuse columns that would not be what they are called."""
    for column, keys in columns.items():
        for key in keys:
            if over := _over(key, given):
                raise UserError(
                    f"{where}: {key} is what column {column} sets; leave {over[0]}= out, or change "
                    "the columns in the file"
                )
        if "rounds" in keys and report.rounds is not None:
            raise UserError(
                f"{where}: column {column} sets rounds, and report.rounds={report.rounds} would "
                "replace them; leave one of them out"
            )


# --- metrics and claims ---------------------------------------------------------------------------


def _check_metrics(
    rows: Mapping[str, RowPlan], metrics: Sequence[str], choose: str, where: str
) -> None:
    """Refuse a name for a metric that the study does not have, or for one that has no other."""
    needed = [metrics[0], choose]
    for name, row in rows.items():
        if row.control and _less_is_better(metrics[0]):
            raise UserError(
                f"{where}.rows.{name}.control: of {metrics[0]}, the table's first metric, "
                "less is better, and a control asks how much more a method has; put another first"
            )
        for metric, own in row.metrics.items():
            if metric not in [*metrics, *needed]:
                raise UserError(
                    f"{where}.rows.{name}.metrics: the table has no metric {shown(metric)}."
                    f"{nearest(metric, [*metrics, *needed])}"
                )
            if own is None and metric in needed:
                raise UserError(
                    f"{where}.rows.{name}.metrics: a row must measure {metric}, by which the table "
                    "compares or chooses; name what stands for it, or leave the row out"
                )


def _check_claims(claims: Sequence[Claim], rows: Mapping[str, RowPlan], where: str) -> None:
    """Refuse to compare a share with what is none, or a number that a row does not have."""
    for claim in claims:
        units = [find_metric(name, declared()) for name in (claim.metric, claim.than)]
        if len({each.unit for each in units if each is not None}) > 1:
            raise UserError(f"{where}.claims: {shown(claim.text)} compares unlike units")
        for side, metric in ((claim.better, claim.metric), (claim.worse, claim.than)):
            if rows[side.row].metrics.get(metric, metric) is None:
                raise UserError(
                    f"{where}.claims: {shown(claim.text)} is about {metric}, which row {side.row} "
                    "does not have (metrics: null); leave the claim out"
                )


def _less_is_better(name: str) -> bool:
    metric = find_metric(name, declared())
    return metric is not None and metric.direction == "min"


def _usual_claims(study: Study, rows: Mapping[str, RowPlan]) -> list[Any]:
    """Return that each method of the file is better than each baseline, by the first metric."""
    sign = "<" if _less_is_better(study.metrics[0]) else ">"
    own = study.rows or {}
    ours = [name for name in rows if name in own and rows[name].control is None]
    others = [name for name in rows if name not in own]
    return [f"{name} {sign} {other}" for name in ours for other in others]


def _of_rows(claims: Sequence[Any], rows: Mapping[str, RowPlan], known: Sequence[str]) -> list[Any]:
    """Return the claims whose rows this scale has."""
    gone = [name for name in known if name not in rows]

    def is_asked(claim: Any) -> bool:
        text = str(claim.get("claim", "")) if isinstance(claim, Mapping) else str(claim)
        return not rows_in(text) & set(gone)

    return [claim for claim in claims if is_asked(claim)]
