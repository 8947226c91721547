"""Read a study's file, in tune/ (sweeps) or tune/tables/ (tables), and return its plan.

All keys but `rows` have defaults: a table of five lines compares a new method with three baselines
on digits. A file without `rows` is a sweep, one experiment in many configurations. `extends` names
the study that the file's other keys change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import Field

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
from fedray.errors import UserError, nearest, shown
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
from fedray.results.paired import TestKind
from fedray.shipped import folders
from fedray.storage.files import check_name, read_text
from fedray.storage.metric import find_metric
from fedray.studies.plan import StudyPlan, known_metrics
from fedray.studies.printed import PAPER, as_printed, can_be_printed
from fedray.studies.space import check_no_select, check_space, count_points, grid, parse_space

Kind = Literal["sweep", "table"]
SCALES = ("laptop", "desktop", PAPER, PRINTED)
PLUGINS = "plugins"
BASELINES = ("local", "fedavg", "fedproto")
"""Default baselines of a table."""
SAMPLES = 16
"""Default number of configurations of a sweep that draws them."""


class Row(Frozen):
    """A method, or a control."""

    algorithm: Any = None
    """The method, with or without hyper-parameters; None: the algorithm of the row's name, or else
    the experiment's algorithm."""
    experiment: str | None = None
    """The row's experiment; None: the table's."""
    set: Tree = Field(default_factory=dict)
    """Keys of the row's experiment."""
    space: Tree = Field(default_factory=dict)
    """Axes added to the table's space; null removes an axis of the table."""
    tuned_as: str | None = None
    """The row whose chosen configuration this row takes over instead of tuning; for controls and
    for figures of a hyper-parameter."""
    label: str = Field("", max_length=45)
    """The row's label in the table; empty: the title of the method of this name, or else the row's
    name. Explain it in `glosses` of the table."""
    metrics: dict[str, str | None] = Field(default_factory=dict)
    """The row's metrics by the table's, where they differ, for example `local_accuracy:
    finetuned_accuracy`. They also replace the metric that chooses. null: the row lacks it."""
    control: str | None = Field(None, min_length=3, max_length=300)
    """Makes the row a control: the statement that the row would refute if it did as well."""
    of: str | None = None
    """The row whose gain the control tries to explain; None: the table's first row."""
    over: str | None = None
    """The row over which the gain is measured; None: the row that `of` is claimed to beat, if it is
    a single one."""


class Item(Frozen):
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
    """The settings that differ at one scale; all default to the study's values."""

    experiment: str | None = None
    """Replaces the study's experiment."""
    set: Tree = Field(default_factory=dict)
    """Keys that override the study's `set`."""
    rows: Tree = Field(default_factory=dict)
    """Keys of rows that override the table's; null removes a row."""
    columns: Tree | None = None
    """Replaces the table's columns or curve."""
    curve: Tree | None = None
    """Replaces the table's curve or columns."""
    space: Tree | None = None
    """Replaces the study's space."""
    metrics: list[str] | None = None
    """Replaces the study's metrics."""
    select: Select | None = None
    """Replaces the study's `select`."""
    tuning: Tree = Field(default_factory=dict)
    """Keys that override the study's `tuning`."""
    report: Tree = Field(default_factory=dict)
    """Keys that override the study's `report`."""
    max_concurrent: int | None = Field(None, ge=1, le=100_000)
    """Concurrent runs; None: as many as the cluster holds."""
    hours: float | None = Field(None, gt=0, le=1e6)
    """Approximate duration on one core; printed before the study starts."""
    left_out: str = Field("", max_length=1000)
    """Parts of the paper's table that this scale leaves out."""


class Study(Frozen):
    """A file in tune/ or tune/tables/."""

    answers: str = Field("", max_length=500)
    """The table, figure or question that the study answers; empty: how the methods compare."""
    items: list[Item] = Field(default_factory=list)
    """Items of papers that the study answers."""
    experiment: str | None = None
    """A shipped experiment or a YAML file that rows and columns change. A table's default is
    fedavg_digits."""
    set: Tree = Field(default_factory=dict)
    """Keys of the experiment, for every cell."""
    rows: Tree | None = None
    """Methods by name: `mine: {algorithm: {name: fedtsp, lambda: 7}}`, or `mine: fedtsp`. A row
    without an algorithm whose name is an algorithm uses it. None: a sweep."""
    baselines: list[str] = Field(default_factory=lambda: list(BASELINES))
    """Algorithms that become rows below those of `rows`."""
    columns: Tree = Field(default_factory=dict)
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
    """The search space of every row in every column: {grid: [...]}, {choice: [...]}, {uniform:
    [lo, hi]}, {loguniform: [lo, hi]}, {randint: [lo, hi]}, ends included. Join keys that vary
    together by commas: `data.clients, participation: {grid: [[10, 1.0]]}`.
    A table's default is lr: {grid: [0.02, 0.06, 0.2]}."""
    tuning: Tree = Field(default_factory=dict)
    """`configurations`, `rounds`, `search`, `extend`: see `Tuning`."""
    report: Tree = Field(default_factory=dict)
    """`seeds`, `rounds`, `looked_at`: see `Reporting`."""
    claims: list[Any] = Field(default_factory=list)
    """Inequalities between cells, see `fedray.results.claims`; empty: each method of `rows` is
    better than each baseline."""
    paper: Tree | None = None
    """`source` and `numbers`: see `PaperNumbers`."""
    glosses: dict[str, str] = Field(default_factory=dict)
    """Sentences about rows or columns, by name, printed below the table."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Confidence level of the intervals; verdicts err with probability 1 - confidence at most."""
    test: TestKind = "fixed"
    """`fixed`: Student's paired t-test, corrected for earlier looks at the verdicts; `anytime`: a
    less powerful test that allows adding seeds until a claim is decided."""
    scales: Tree = Field(default_factory=lambda: {"laptop": {}})
    """laptop: minutes; desktop: a night on a few cores; paper: GPUs; printed: what differs from the
    rule of `fedray.studies.printed`."""

    @property
    def is_sweep(self) -> bool:
        """Return True if the study has no rows."""
        return self.rows is None


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
    samples: int | None = None,
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
        samples: number of configurations of a sweep; None: the file's.
        rows: the rows of a table to run; empty: all.

    Raises:
        UserError: naming the first defect of the file or of the keys.
    """
    path, tree, _ = read_study(kind, name)
    where = f"{kind} {check_name(path.stem)}"
    study = validate(Study, as_printed(tree, where) if scale == PRINTED else tree, where)
    scales = {label: _scale(label, of_it, where) for label, of_it in study.scales.items()}
    if not scales:
        raise UserError(f"{where}.scales is empty; leave it out, or give laptop: {{}}")
    assignments = {**_sort_assignments(pairs, where), "plugins": plugins}
    if samples is not None:
        assignments["tuning"]["configurations"] = samples
    if not study.is_sweep:  # check all scales, because they share the table's claims and rows
        for label, other_scale in scales.items():
            if label != PRINTED or scale == PRINTED:
                _plan_scale(study, path.stem, label, other_scale, {"plugins": plugins})
    scale = next(iter(scales)) if scale is None else scale
    if scale not in scales:
        more = [PRINTED] if can_be_printed(scales) else []
        only = ", ".join(dict.fromkeys([*scales, *more]))
        raise UserError(f"{where} has no {scale} scale, only {only}")
    chosen = _picked(study, scales[scale], rows, where)
    return _plan_scale(study, path.stem, scale, chosen, assignments)


def _picked(study: Study, scale: Scale, rows: Sequence[str], where: str) -> Scale:
    """Return a scale with the given rows alone; all rows if none is given."""
    known = _all_rows(study, where)
    for name in rows:
        if study.is_sweep or name not in known:
            raise UserError(f"{where} has no row {shown(name)}.{nearest(name, known)}")
    others = {name: None for name in known if name not in rows}
    return scale.model_copy(update={"rows": {**scale.rows, **others}}) if rows else scale


def _scale(label: str, tree: Any, where: str) -> Scale:
    if label not in SCALES:
        raise UserError(
            f"{where}.scales: {shown(label)} is none of {', '.join(SCALES)}."
            f"{nearest(label, SCALES)}"
        )
    return validate(Scale, {} if tree is None else tree, f"{where}.scales.{label}")


def _sort_assignments(pairs: Iterable[tuple[str, Any]], where: str) -> Tree:
    """Sort keys into those of the study (`tuning.*`, `report.*`, `select`, `test`) and others."""
    assignments: Tree = {"set": {}, "tuning": {}, "report": {}}
    for key, value in pairs:
        part, _, inner = key.partition(".")
        if key == "seed":
            assignments["report"]["seeds"] = _seeds_in(value)
        elif key in ("select", "report.select"):
            assignments["select"] = value
        elif key == "test":
            assignments["test"] = value
        elif part == "tuning" and inner:
            assignments["tuning"][inner] = value
        elif part == "report" and inner in Reporting.model_fields:
            assignments["report"][inner] = value
        elif key == "rounds":
            assignments["tuning"]["rounds"] = assignments["report"]["rounds"] = value
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


def _plan_scale(study: Study, name: str, label: str, scale: Scale, assignments: Tree) -> StudyPlan:
    """Return the checked plan of one scale; loads the study's plug-ins."""
    where = f"{'sweep' if study.is_sweep else 'table'} {name}"
    experiment = _experiment(study, scale, where)
    bases = _bases(study, scale, experiment, assignments)
    columns, curve = _settings(study, scale, where)
    tuning, report = _phases(study, scale, assignments, columns, where)
    rows = _rows(study, scale, _space(study, scale), tuning, where)
    metrics = scale.metrics or study.metrics
    choose = study.choose or metrics[0]
    _check_tuned(rows, columns, assignments.get("set", {}), where)
    _check_metrics(rows, metrics, choose, where)
    base = bases[experiment] if study.is_sweep or label == PRINTED else {}
    select = _select(study, scale, assignments, base, where)
    claims = [] if label == PRINTED else _claims(study, rows, columns, metrics, where)
    plan = StudyPlan(
        kind="sweep" if study.is_sweep else "table",
        name=name,
        scale=label,
        answers=study.answers or f"how {', '.join(rows)} compare",
        experiment=experiment,
        bases=bases,
        set=_keys({**study.set, **scale.set}, f"{where}.scales.{label}.set"),
        given=_keys(assignments.get("set", {}), where),
        rows=_with_baselines(rows, parse_claims(claims, list(rows), list(columns), metrics), where),
        columns=columns,
        curve=curve,
        metrics=metrics,
        choose=choose,
        select=select,
        validation_fraction=study.validation_fraction if select == "validation" else None,
        tuning=_limit_to_space(tuning, rows),
        report=report,
        claims=claims,
        paper=_paper(study, where),
        test=_test(study, assignments, where),
        glosses=_glosses(study, where),
        **study.model_dump(include={"at", "confidence"}),
        **scale.model_dump(include={"max_concurrent", "hours", "left_out"}),
    )
    _check_sweep(plan, where)
    return plan


def _limit_to_space(tuning: Tuning, rows: Mapping[str, RowPlan]) -> Tuning:
    """Return the budget of a tpe search, which tries no configuration twice."""
    points = (
        count_points(parse_space(next(iter(rows.values())).space))
        if tuning.search == "tpe"
        else None
    )
    if points is None or tuning.configurations is None or tuning.configurations <= points:
        return tuning
    return tuning.model_copy(update={"configurations": points})


def _experiment(study: Study, scale: Scale, where: str) -> str:
    """Return the name of the experiment that the study is based on."""
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
    """Check and return the claims about the rows of this scale."""
    claims = study.claims or _default_claims(study, rows)
    claims = _claims_about_rows(claims, rows, list(_all_rows(study, where)))
    _check_claims(parse_claims(claims, list(rows), list(columns), metrics), rows, where)
    return claims


def _bases(study: Study, scale: Scale, experiment: str, assignments: Tree) -> dict[str, Tree]:
    """Load the plug-ins and return the experiments of all rows, each with all plug-in sources.

    A resumed study runs the stored sources, even if the plug-in files have changed.
    """
    rows = [*(study.rows or {}).values(), *scale.rows.values()]
    named = [row.get("experiment") for row in rows if isinstance(row, Mapping)]
    texts_of = [name for name in named if isinstance(name, str)]  # others are refused as rows
    names = dict.fromkeys([experiment, *texts_of])
    plugins = {**study.set, **scale.set, **assignments.get("set", {})}.get(PLUGINS)
    pairs, more = [(PLUGINS, plugins)], assignments.get("plugins", ())
    trees = {
        name: with_read_plugins(read_experiment(name), pairs, more, trusted=not is_record(name))
        for name in names
    }
    texts = {text["module"]: text for tree in trees.values() for text in tree.get(PLUGINS, ())}
    all_plugins = [(PLUGINS, list(texts.values()) or None)]
    return {name: with_plugins(tree, all_plugins) for name, tree in trees.items()}


def _select(study: Study, scale: Scale, assignments: Tree, base: Tree, where: str) -> Select:
    """Return the images on which configurations and rounds are chosen; by default as `base`."""
    choice = assignments.get("select") or scale.select or study.select
    if choice is None and base:
        tree = override({"report": base.get("report", {})}, ())
        choice = validate(ReportConfig, tree["report"], "report").select
    choice = choice or "validation"
    ways = ("validation", "test", "nothing") if study.is_sweep else ("validation", "test")
    if choice not in ways:
        raise UserError(f"{where}.select is {shown(choice)}, expected {' or '.join(ways)}")
    select: Select = choice
    return select


def _test(study: Study, assignments: Tree, where: str) -> TestKind:
    """Return the test of the claims."""
    kind: TestKind = assignments.get("test", study.test)
    if kind not in get_args(TestKind):
        raise UserError(f"{where}.test is {shown(kind)}, expected fixed or anytime")
    return kind


def _space(study: Study, scale: Scale) -> Tree:
    space = study.space if scale.space is None else scale.space
    if space is None:
        return {} if study.is_sweep else {"lr": {"grid": [0.02, 0.06, 0.2]}}
    return space


def _phases(
    study: Study, scale: Scale, assignments: Tree, columns: Mapping[str, Tree], where: str
) -> tuple[Tuning, Reporting]:
    """Check and return the settings of tuning and of the report."""
    defaults: Tree = {}
    if study.is_sweep:
        searched = {**study.tuning, **scale.tuning}.get("search", "grid")
        defaults = {"configurations": None if searched == "grid" else SAMPLES, "extend": False}
    tuning_keys, report_keys = dict(assignments.get("tuning", {})), assignments.get("report", {})
    if study.is_sweep:
        tuning_keys.pop("rounds", None)  # a sweep has tuning runs only; report.rounds sets theirs
    tuned = {**defaults, **study.tuning, **scale.tuning, **tuning_keys}
    tuning = validate(Tuning, tuned, f"{where}.tuning")
    reported = {"seeds": [0]} if study.is_sweep else {}
    report = validate(
        Reporting, {**reported, **study.report, **scale.report, **report_keys}, f"{where}.report"
    )
    _check_seeds(report.seeds, f"{where}.report" if not study.is_sweep else where)
    if "seeds" in report_keys and "looked_at" not in report_keys:
        report = _restrict_looks(report)
    _check_looks(report, where)
    _check_columns(columns, assignments.get("set", {}), report, where)
    if tuning.at is not None and tuning.at not in columns:
        raise UserError(
            f"{where}.tuning.at: there is no column {shown(tuning.at)}."
            f"{nearest(tuning.at, columns)}"
        )
    return tuning, report


def _check_looks(report: Reporting, where: str) -> None:
    """Raise an error for a look with seeds that are not reported."""
    for look in report.looked_at:
        if not look or not set(look) <= set(report.seeds):
            raise UserError(
                f"{where}.report.looked_at: {shown(look)} must be seeds of the report: those whose "
                "verdicts were known when others were added or the table was changed"
            )


def _restrict_looks(report: Reporting) -> Reporting:
    """Return the report with looks at its seeds alone, for seeds of the command line."""
    reduced = [[seed for seed in look if seed in report.seeds] for look in report.looked_at]
    looks = [look for look in reduced if 0 < len(look) < len(report.seeds)]
    return report.model_copy(update={"looked_at": looks})


def _check_seeds(seeds: Sequence[Any], where: str) -> None:
    """Raise an error for seeds that are no whole numbers, negative or repeated."""
    integers = [seed for seed in seeds if isinstance(seed, int) and not isinstance(seed, bool)]
    bad = len(integers) < len(seeds) or any(not 0 <= seed < 2**63 for seed in integers)
    if bad or not seeds or len(set(seeds)) < len(seeds):
        raise UserError(
            f"{where}: seeds={shown(list(seeds))}, expected different whole numbers from 0, for "
            "example [0]"
        )


def _unfit_for_asha(plan: StudyPlan) -> list[tuple[bool, bool, str]]:
    """Return what a study with ASHA must not have: whether it applies, is wrong, and why."""
    tuning = plan.tuning
    return [
        (
            tuning.asha is not None,
            len(plan.report.seeds) > 1,
            "tuning.asha compares single runs, not means over seeds; give one seed, and run the "
            "best configurations with more, or leave asha out",
        ),
        (
            tuning.asha is not None,
            tuning.search == "tpe",
            "tuning.asha: tpe would take a stopped run's last value for its result; use search: "
            "random, or leave asha out",
        ),
        (plan.select == "nothing", tuning.asha is not None, "select: nothing needs asha: null"),
    ]


def _check_sweep(plan: StudyPlan, where: str) -> None:
    """Raise an error for settings that only tables or only sweeps support."""
    tuning = plan.tuning
    wrong = [
        *_unfit_for_asha(plan),
        (plan.is_sweep, tuning.rounds is not None, "tuning.rounds is for tables; set rounds"),
        (
            plan.is_sweep,
            plan.test != "fixed",
            "test is for tables, which have claims; leave it out",
        ),
        (not plan.is_sweep, tuning.search == "tpe", "tuning.search: tpe is for sweeps; use random"),
        (not plan.is_sweep, tuning.asha is not None, "tuning.asha is for sweeps; leave it out"),
        (plan.select == "nothing", plan.at != "final", "select: nothing needs at: final"),
        (plan.select == "nothing", tuning.search != "grid", "select: nothing needs search: grid"),
    ]
    for applies, is_wrong, what in wrong:
        if applies and is_wrong:
            raise UserError(f"{where}: {what}")
    if not plan.is_sweep:
        return
    space = plan.rows[ALL].space
    if not space:
        raise UserError(
            f"{where}.space is empty; name what is swept, for example algorithm.lambda: "
            "{grid: [1, 7]}"
        )


def _paper(study: Study, where: str) -> PaperNumbers | None:
    if study.paper is None:
        return None
    paper = validate(PaperNumbers, study.paper, f"{where}.paper")
    paper.check(list(_all_rows(study, where)), where)
    return paper


def _glosses(study: Study, where: str) -> dict[str, str]:
    """Check and return the glosses; they may name rows and columns of any scale."""
    scales = [validate(Scale, tree or {}, where) for tree in study.scales.values()]
    settings = [_settings(study, scale, where)[0] for scale in (Scale(), *scales)]
    names = [*_all_rows(study, where), *(column for columns in settings for column in columns)]
    for name in study.glosses:
        if name not in names:
            raise UserError(
                f"{where}.glosses: there is no row or column {shown(name)}.{nearest(name, names)}"
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
    plain = all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in numbers
    )
    if len(curve) > 1 or len(numbers) < 2 or not plain or sorted(set(numbers)) != numbers:
        raise UserError(
            f"{where}.curve is {shown(curve)}, expected one key and at least two numbers in "
            "ascending order, for example {algorithm.lambda: [0, 1, 7]}"
        )
    name = key.rpartition(".")[2]
    return _columns({f"{name}={value}": {key: value} for value in numbers}, where), key


def _columns(columns: Tree, where: str) -> dict[str, Tree]:
    """Return the settings by name; a single one without keys if the study has no columns."""
    for name, keys in columns.items():
        if name in (MEAN, EACH):
            raise UserError(
                f"{where}.columns: '{name}' is reserved for claims (on: {name}); rename the column"
            )
        if not isinstance(keys, dict):
            raise UserError(
                f"{where}.columns.{name} is {shown(keys)}, expected the keys that it sets, for "
                "example {data.partition.alpha: 0.1}"
            )
        _keys(keys, f"{where}.columns.{name}")
    return dict(columns) or {ALL: {}}


def _keys(keys: Tree, where: str) -> Tree:
    """Check and return an experiment's keys without plug-ins, which `_bases` loads."""
    keys = {key: value for key, value in keys.items() if key != PLUGINS}
    if wrong := [key for key in keys if not is_key(key)]:
        raise UserError(f"{where}: {shown(wrong[0])} is no key")
    if "seed" in keys:
        raise UserError(f"{where}: a study has its own seeds; write report: {{seeds: [...]}}")
    check_no_select(keys, where)
    return keys


# --- rows -----------------------------------------------------------------------------------------


def _all_rows(study: Study, where: str) -> dict[str, Row]:
    """Return the rows and baselines of the file; a single row for a sweep."""
    if study.rows is None:
        return {ALL: Row()}
    if not study.rows:
        raise UserError(f"{where}.rows is empty; name a method, for example rows: {{fedtsp: }}")
    rows = {name: _row(name, tree, f"{where}.rows.{name}") for name, tree in study.rows.items()}
    for name in study.baselines:
        rows.setdefault(name, Row(algorithm=name))
    return rows


def _row(name: str, tree: Any, where: str) -> Row:
    if tree is None:
        return Row(algorithm=name)
    row = validate(Row, _row_keys(tree, where), where)
    if row.algorithm is not None and not isinstance(row.algorithm, str | Mapping):
        raise UserError(f"{where}.algorithm is {shown(row.algorithm)}, expected a method")
    _keys(row.set, f"{where}.set")
    if row.algorithm is None and name in registry("algorithm").names():
        return row.model_copy(update={"algorithm": name})
    return row


def _row_keys(tree: Any, where: str) -> Tree:
    """Return the keys of a row, which may be written as the name of its method."""
    if isinstance(tree, str):
        return {"algorithm": tree}
    if not isinstance(tree, Mapping):
        raise UserError(f"{where} is {shown(tree)}, expected a method, or its keys")
    return dict(tree)


def _rows(
    study: Study, scale: Scale, space: Tree, tuning: Tuning, where: str
) -> dict[str, RowPlan]:
    """Return the rows of a scale, each with its whole space."""
    rows = _all_rows(study, where)
    for name, tree in scale.rows.items():
        if name not in rows:
            raise UserError(
                f"{where}: a scale changes row {shown(name)}, which the table does not have."
                f"{nearest(name, rows)}"
            )
        if tree is None:
            del rows[name]
        else:
            changes = _row_keys(tree, f"{where}.rows.{name}")
            rows[name] = _row(name, {**rows[name].model_dump(), **changes}, f"{where}.{name}")
    first = next(iter(rows), None)
    plans = {}
    for name, row in rows.items():
        at = f"{where}.rows.{name}"
        check_row_name(name, where)
        _check_references(row, rows, at)
        axes = _axes(row, rows, space, at)
        _check_effort(axes, tuning, study.is_sweep, where if study.is_sweep else at)
        plans[name] = RowPlan(
            algorithm=row.algorithm,
            experiment=row.experiment,
            set=row.set,
            space=axes,
            label=row.label or _title(name, row),
            metrics=row.metrics,
            control=row.control,
            of=_explained(name, row, first, at),
            over=row.over,
            tuned_as=row.tuned_as,
        )
    return plans


def _title(name: str, row: Row) -> str:
    """Return the title of a row's method if the row is named as the method; otherwise its name."""
    from fedray.core import algorithms

    method = row.algorithm.get("name") if isinstance(row.algorithm, Mapping) else row.algorithm
    method = method or name
    if spelled(str(method)) != spelled(name) or method not in algorithms.names():
        return name
    return str(getattr(algorithms.get(method), "title", name))[:45]


def _check_references(row: Row, rows: Mapping[str, Row], where: str) -> None:
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


def _with_baselines(
    rows: Mapping[str, RowPlan], claims: Sequence[Claim], where: str
) -> dict[str, RowPlan]:
    """Return the rows; a control without `over` gets the only row that its method is to beat."""
    plans = dict(rows)
    for name, row in rows.items():
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
        plans[name] = row.model_copy(update={"over": beaten.pop()})
    return plans


def _axes(row: Row, rows: Mapping[str, Row], space: Tree, where: str) -> Tree:
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


def _check_effort(space: Tree, tuning: Tuning, is_sweep: bool, where: str) -> None:
    """Raise an error for a space that the search does not support or that exceeds the budget."""
    check_space(space, tuning.search, where)
    points, budget = len(grid(parse_space(space))) if tuning.search == "grid" else 0, tuning
    if not is_sweep and points > (budget.configurations or MOST_CONFIGURATIONS):
        raise UserError(
            f"{where}.space is a grid of {points} configurations, and tuning.configurations="
            f"{tuning.configurations} is the budget of every row; raise it, list fewer values, or "
            "use tuning.search: random"
        )


def _check_tuned(
    rows: Mapping[str, RowPlan], columns: Mapping[str, Tree], assignments: Tree, where: str
) -> None:
    """Raise an error if a tuned key is also set by a row, a column or the command line."""
    set_here = {over: over for over in assignments}
    set_here |= {key: over for over, value in assignments.items() for key in flatten({over: value})}
    for name, row in rows.items():
        for_row = "" if name == ALL else f" for row {name}"
        tuned = [key for axis in parse_space(row.space) for key in axis.keys]
        for key in filter(set_here.__contains__, tuned):
            over = set_here[key]
            raise UserError(
                f"{where}: {key} is tuned{for_row}; leave {over}={assignments[over]} out, or "
                "change the space in the file"
            )
        sources = {f"column {column}": keys for column, keys in columns.items()}
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


def _check_columns(
    columns: Mapping[str, Tree], assignments: Tree, report: Reporting, where: str
) -> None:
    """Raise an error if the command line or the report overrides a key that a column sets."""
    for column, keys in columns.items():
        for key in keys:
            if over := _overlapping_keys(key, assignments):
                raise UserError(
                    f"{where}: column {column} sets {key}; leave {over[0]}= out, or change the "
                    "columns in the file"
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
    """Raise an error for a row's metrics that the table lacks, or null for one that it needs."""
    needed = [metrics[0], choose]
    for name, row in rows.items():
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


def _check_claims(claims: Sequence[Claim], rows: Mapping[str, RowPlan], where: str) -> None:
    """Raise an error for claims that compare different units or use a metric that a row lacks."""
    for claim in claims:
        units = [find_metric(name, known_metrics()) for name in (claim.metric, claim.than)]
        if len({declaration.unit for declaration in units if declaration is not None}) > 1:
            raise UserError(f"{where}.claims: {shown(claim.text)} compares different units")
        for side, metric in ((claim.better, claim.metric), (claim.worse, claim.than)):
            if rows[side.row].metrics.get(metric, metric) is None:
                raise UserError(
                    f"{where}.claims: {shown(claim.text)} is about {metric}, which row {side.row} "
                    "does not have (metrics: null); leave the claim out"
                )


def _less_is_better(name: str) -> bool:
    metric = find_metric(name, known_metrics())
    return metric is not None and metric.direction == "min"


def _default_claims(study: Study, rows: Mapping[str, RowPlan]) -> list[Any]:
    """Return the default claims: each method is better than each baseline, by the first metric."""
    sign = "<" if _less_is_better(study.metrics[0]) else ">"
    file_rows = study.rows or {}
    methods = [name for name in rows if name in file_rows and rows[name].control is None]
    baselines = [name for name in rows if name not in file_rows]
    return [f"{name} {sign} {other}" for name in methods for other in baselines]


def _claims_about_rows(
    claims: Sequence[Any], rows: Mapping[str, RowPlan], names: Sequence[str]
) -> list[Any]:
    """Return the claims about rows of this scale; drop those about rows that the scale removes.

    Args:
        claims: the claims of the file.
        rows: the rows of this scale.
        names: all rows of the file.
    """
    removed = [name for name in names if name not in rows]

    def is_about_rows(claim: Any) -> bool:
        text = str(claim.get("claim", "")) if isinstance(claim, Mapping) else str(claim)
        return not rows_in(text) & set(removed)

    return [claim for claim in claims if is_about_rows(claim)]
