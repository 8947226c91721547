"""A table as written in tune/tables/: methods by settings, tuned alike; what a paper says.

Everything but `rows` has a default, so that a file of five lines compares a new method with three
baselines on digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field

from fedray.config import (
    Frozen,
    Tree,
    find_yaml,
    is_key,
    parse_assignments,
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
from fedray.sweep.spec import check_no_select, check_seeds, check_space, grid, parse_axis
from fedray.tables.claims import ALL, EACH, MEAN, Claim, parse_claims, rows_in
from fedray.tables.looks import check_looks, within_seeds
from fedray.tables.plan import PaperNumbers, Reporting, RowPlan, TablePlan, Tuning

SCALES = ("laptop", "desktop", "paper")
PLUGINS = "plugins"
BASELINES = ("local", "fedavg", "fedproto")
"""The methods that a file is compared with that names none."""
M = TypeVar("M", bound=BaseModel)


class Row(Frozen):
    """A method, or a control."""

    algorithm: Any = None
    """The method, with its hyper-parameters or without; None: the one that the row is called
    after, or else the experiment's."""
    experiment: str | None = None
    """An experiment of its own, in place of the table's."""
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


class Scale(Frozen):
    """What is different at one scale; everything has the table's value by default."""

    experiment: str | None = None
    """In place of the table's."""
    set: Tree = Field(default_factory=dict)
    """Laid on the table's."""
    rows: Tree = Field(default_factory=dict)
    """Keys of rows, laid on the table's; null leaves a row out."""
    columns: Tree | None = None
    """In place of the table's, or of its curve."""
    curve: Tree | None = None
    """In place of the table's, or of its columns."""
    space: Tree | None = None
    """In place of the table's."""
    tuning: Tree = Field(default_factory=dict)
    """Laid on the table's."""
    report: Tree = Field(default_factory=dict)
    """Laid on the table's."""
    max_concurrent: int | None = Field(None, ge=1, le=100_000)
    """Runs at a time; None: as many as the cluster holds."""
    hours: float | None = Field(None, gt=0, le=1e6)
    """About how long it takes, of one core; said before it starts."""
    left_out: str = Field("", max_length=1000)
    """What of the paper's table this scale does not have."""


class Table(Frozen):
    """A file in tune/tables/."""

    answers: str = Field("", max_length=500)
    """The table or question that it answers; empty: how the methods compare."""
    experiment: str = "fedavg_digits"
    """A shipped experiment, or a YAML file: what rows and columns change."""
    set: Tree = Field(default_factory=dict)
    """Keys of the experiment, for every cell."""
    rows: Tree
    """Methods by name: `mine: {algorithm: {name: fedtsp, lambda: 7}}`, or `mine: fedtsp`; one that
    is called after an algorithm and names no other is that algorithm."""
    baselines: list[str] = Field(default_factory=lambda: list(BASELINES))
    """Algorithms that are rows too, below those of `rows`."""
    columns: Tree = Field(default_factory=dict)
    """Settings by name, each with the experiment's keys that it sets; empty: one column."""
    curve: Tree = Field(default_factory=dict)
    """In place of columns, one key and its numbers: `algorithm.lambda: [0, 1, 7]` makes the columns
    lambda=0, lambda=1 and lambda=7, and the figure a curve."""
    metrics: list[str] = Field(default_factory=lambda: ["local_accuracy"], min_length=1)
    """What is shown; claims are about the first one, unless they name another."""
    choose: str | None = None
    """By which metric configurations and rounds are chosen; None: by the first one of `metrics`."""
    select: Literal["validation", "test"] = "validation"
    """On which images it is chosen; `test` is the papers' habit, and marks every number."""
    validation_fraction: float | None = Field(0.2, gt=0, lt=1)
    """What clients hold out where the experiment does not say; null where its partition does."""
    at: Literal["best", "final"] = "best"
    """Which round counts: the best one where it is chosen, never round 0, or the last."""
    space: Tree = Field(default_factory=lambda: {"lr": {"grid": [0.02, 0.06, 0.2]}})
    """What is tuned for every row, in every column."""
    tuning: Tree = Field(default_factory=dict)
    """`seeds`, `configurations`, `rounds`, `search`, `extend`: see `Tuning`."""
    report: Tree = Field(default_factory=dict)
    """`seeds`, `rounds`, `looked_at`: see `Reporting`."""
    claims: list[Any] = Field(default_factory=list)
    """Inequalities between cells, see `fedray.tables.claims`; empty: each method of `rows` is
    better than each baseline."""
    paper: Tree | None = None
    """`source` and `numbers`: see `PaperNumbers`."""
    glosses: dict[str, str] = Field(default_factory=dict)
    """A sentence about a row or a column, by its name, below the table."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Of the intervals; a claim is decided where it errs with at most one minus this."""
    scales: Tree = Field(default_factory=lambda: {"laptop": {}})
    """laptop: minutes; desktop: a night on a few cores; paper: GPUs."""


def plan_table(
    name: str,
    assignments: Iterable[str] = (),
    scale: str | None = None,
    plugins: Sequence[str] = (),
) -> TablePlan:
    """Find a table, take one scale of it, and lay the command line's keys on its experiments.

    `report.seeds=[0,1]`, `tuning.configurations=2`, `select=test` and the like change the table;
    `rounds=5` is that of both tuning and report.

    Args:
        name: a table's name or file.
        assignments: "key=value" for the experiment of every cell.
        scale: laptop, desktop or paper; None: the first one that the file has.
        plugins: files and modules besides those that the experiments name.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    path = find_yaml(name, folders("tables"), "table")
    where = f"table {check_name(path.stem)}"
    table = validate(Table, read_mapping(path), where)
    scales = {label: _scale(label, tree, where) for label, tree in table.scales.items()}
    if not scales:
        raise UserError(f"{where}.scales is empty; leave it out, or give laptop: {{}}")
    given = {**_assigned(assignments, where), "plugins": plugins}
    for label, each in scales.items():
        _planned(table, path.stem, label, each, {"plugins": plugins})
    scale = next(iter(scales)) if scale is None else scale
    if scale not in scales:
        raise UserError(f"{where} has no {scale} scale, only {', '.join(scales)}")
    return _planned(table, path.stem, scale, scales[scale], given)


def _scale(label: str, tree: Any, where: str) -> Scale:
    if label not in SCALES:
        raise UserError(
            f"{where}.scales: {shown(label)} is none of {', '.join(SCALES)}."
            f"{nearest(label, SCALES)}"
        )
    return validate(Scale, {} if tree is None else tree, f"{where}.scales.{label}")


def _assigned(assignments: Iterable[str], where: str) -> Tree:
    """What the command line sets: of the table `tuning.*` and `report.*`, else of experiments."""
    given: Tree = {"set": {}, "tuning": {}, "report": {}, "select": {}}
    for key, value in parse_assignments(assignments):
        part, _, inner = key.partition(".")
        if key == "seed":
            raise UserError(f"{where}: seed= is chosen by phase; write report.seeds=[{value}]")
        if key in ("select", "report.select"):
            if given["select"].get("select", value) != value:
                raise UserError(f"{where}: select and report.select are one; give one of them")
            given["select"] = {"select": value}
        elif part in ("tuning", "report") and inner:
            given[part][inner] = value
        elif key == "rounds":
            given["tuning"].setdefault("rounds", value)
            given["report"].setdefault("rounds", value)
        else:
            given["set"][key] = value
    return given


def _planned(table: Table, name: str, label: str, scale: Scale, given: Tree) -> TablePlan:
    """One scale of a table, checked; its plug-ins are in use from here on."""
    where = f"table {name}"
    bases = _bases(table, scale, given)
    table = validate(Table, {**table.model_dump(), **given.get("select", {})}, where)
    at_scale = f"{where}.scales.{label}"
    columns, curve = _settings(table, scale, where)
    space = table.space if scale.space is None else scale.space
    tuning, report = _phases(table, scale, given, columns, where)
    rows = _rows(table, scale, space, tuning, where)
    _check_tuned(rows, columns, given.get("set", {}), where)
    _check_metrics(rows, table, where)
    known = list(_all_rows(table, where))
    claims = _of_rows(table.claims or _usual_claims(table, rows), rows, known)
    _check_claims(parse_claims(claims, list(rows), list(columns), table.metrics), rows, where)
    experiment = scale.experiment or table.experiment
    return TablePlan(
        table=name,
        scale=label,
        answers=table.answers or f"how {', '.join(rows)} compare",
        experiment=experiment,
        bases=bases,
        set=_keys({**table.set, **scale.set}, f"{at_scale}.set"),
        given=_keys(given.get("set", {}), where),
        rows=rows,
        columns=columns,
        curve=curve,
        metrics=table.metrics,
        choose=table.choose or table.metrics[0],
        select=table.select,
        validation_fraction=table.validation_fraction if table.select == "validation" else None,
        at=table.at,
        tuning=tuning,
        report=report,
        claims=claims,
        paper=_paper(table, known, where),
        confidence=table.confidence,
        max_concurrent=scale.max_concurrent,
        hours=scale.hours,
        glosses=_glosses(table, known, where),
        left_out=scale.left_out,
    )


def _bases(table: Table, scale: Scale, given: Tree) -> dict[str, Tree]:
    """The experiments that rows change, with the texts of all plug-ins, which are put to use.

    A resumed table runs these texts, whatever became of the files.
    """
    rows = [*table.rows.values(), *scale.rows.values()]
    named = [row.get("experiment") for row in rows if isinstance(row, Mapping)]
    texts_of = [name for name in named if isinstance(name, str)]  # others are refused as rows
    names = dict.fromkeys([scale.experiment or table.experiment, *texts_of])
    own = {**table.set, **scale.set, **given.get("set", {})}.get(PLUGINS)
    pairs, more = [(PLUGINS, own)], given.get("plugins", ())
    trees = {name: with_read_plugins(read_experiment(name), pairs, more) for name in names}
    texts = {text["module"]: text for tree in trees.values() for text in tree.get(PLUGINS, ())}
    every = [(PLUGINS, list(texts.values()) or None)]
    return {name: with_plugins(tree, every) for name, tree in trees.items()}


def _phases(
    table: Table, scale: Scale, given: Tree, columns: Mapping[str, Tree], where: str
) -> tuple[Tuning, Reporting]:
    """What is spent on tuning and on the report, of columns that stay what they are."""
    tuning = _laid(Tuning, table.tuning, scale.tuning, given.get("tuning", {}), f"{where}.tuning")
    asked = given.get("report", {})
    report = _laid(Reporting, table.report, scale.report, asked, f"{where}.report")
    check_seeds(tuning.seeds, f"{where}.tuning")
    check_seeds(report.seeds, f"{where}.report")
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


def _paper(table: Table, rows: Sequence[str], where: str) -> PaperNumbers | None:
    if table.paper is None:
        return None
    paper = validate(PaperNumbers, table.paper, f"{where}.paper")
    paper.check(rows, where)
    return paper


def _glosses(table: Table, rows: Sequence[str], where: str) -> dict[str, str]:
    """Of rows and columns, also those of other scales."""
    scales = [validate(Scale, tree or {}, where) for tree in table.scales.values()]
    settings = [_settings(table, scale, where)[0] for scale in (Scale(), *scales)]
    known = [*rows, *(column for columns in settings for column in columns)]
    for name in table.glosses:
        if name not in known:
            raise UserError(
                f"{where}.glosses: there is no row or column {shown(name)}.{nearest(name, known)}"
            )
    return table.glosses


def _laid(model: type[M], table: Tree, scale: Tree, given: Tree, where: str) -> M:
    return validate(model, {**table, **scale, **given}, where)


def _settings(table: Table, scale: Scale, where: str) -> tuple[dict[str, Tree], str | None]:
    """The columns of a scale, and the key of its curve."""
    columns, curve = table.columns, table.curve
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
    """The settings by name; one that sets nothing where there are none."""
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
    """An experiment's keys, checked; plug-ins are with the bases."""
    keys = {key: value for key, value in keys.items() if key != PLUGINS}
    if wrong := [key for key in keys if not is_key(key)]:
        raise UserError(f"{where}: {shown(wrong[0])} is no key")
    if "seed" in keys:
        raise UserError(f"{where}: seed is chosen by phase; write report: {{seeds: [...]}}")
    check_no_select(keys, where)
    return keys


def _all_rows(table: Table, where: str) -> dict[str, Row]:
    """The file's rows and its baselines, as written."""
    if not table.rows:
        raise UserError(f"{where}.rows is empty; name a method, for example rows: {{fedtsp: }}")
    found = {name: _row(name, tree, f"{where}.rows.{name}") for name, tree in table.rows.items()}
    for name in table.baselines:
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
    """The keys of a row, which may be written as its method alone."""
    if isinstance(tree, str):
        return {"algorithm": tree}
    if not isinstance(tree, Mapping):
        raise UserError(f"{where} is {shown(tree)}, expected a method, or its keys")
    return dict(tree)


def _rows(
    table: Table, scale: Scale, space: Tree, tuning: Tuning, where: str
) -> dict[str, RowPlan]:
    """The rows of a scale, each with its whole space."""
    written = _all_rows(table, where)
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
        for key, other in (("of", row.of), ("over", row.over), ("tuned_as", row.tuned_as)):
            if other is not None and other not in written:
                raise UserError(
                    f"{where}.rows.{name}.{key}: there is no row {shown(other)}."
                    f"{nearest(other, written)}"
                )
        axes = _axes(name, written, space, where)
        _check_effort(axes, tuning, f"{where}.rows.{name}")
        found[name] = RowPlan(
            algorithm=row.algorithm,
            experiment=row.experiment,
            set=row.set,
            space=axes,
            label=row.label or name,
            metrics=row.metrics,
            control=row.control,
            of=_explained(name, row, first, f"{where}.rows.{name}"),
            over=row.over,
            tuned_as=row.tuned_as,
        )
    return found


def _explained(name: str, row: Row, first: str | None, where: str) -> str | None:
    """The row whose gain a control is to explain."""
    explained = (row.of or first) if row.control else None
    if explained == name:
        raise UserError(f"{where}: a control explains another row; name it in of:")
    if row.over is not None and row.over in (name, explained):
        raise UserError(f"{where}.over is {row.over}; name the row over which {explained} gains")
    return explained


def _axes(name: str, rows: Mapping[str, Row], space: Tree, where: str) -> Tree:
    """What is tuned for a row: the table's space and its own, or those of the row it follows."""
    row = rows[name]
    if row.tuned_as is not None:
        leader = rows[row.tuned_as]
        if row.space or leader.tuned_as is not None:
            raise UserError(
                f"{where}.rows.{name}.tuned_as takes over what row {row.tuned_as} tunes; that row "
                "must tune by itself, and this one has no space of its own"
            )
        row = leader
    return {key: tree for key, tree in {**space, **row.space}.items() if tree is not None}


def _check_effort(space: Tree, tuning: Tuning, where: str) -> None:
    """Refuse a space that the search cannot walk, or not within the budget of all rows."""
    if not space:
        return
    check_space(space, tuning.search, where)
    axes = [parse_axis(key, tree) for key, tree in space.items()]
    if tuning.search == "grid" and (points := len(grid(axes))) > tuning.configurations:
        raise UserError(
            f"{where}.space is a grid of {points} configurations, and tuning.configurations="
            f"{tuning.configurations} is the budget of every row; raise it, list fewer values, or "
            "use tuning.search: random"
        )


def _check_tuned(
    rows: Mapping[str, RowPlan], columns: Mapping[str, Tree], given: Tree, where: str
) -> None:
    """Refuse to tune what a row, a column or the command line sets: none would be what it says."""
    for name, row in rows.items():
        for key in (key for axis in row.axes for key in axis.keys if key in given):
            raise UserError(
                f"{where}: {key} is tuned for row {name}; leave {key}={given[key]} out, or change "
                "the space in the file"
            )
        said = {f"column {column}": keys for column, keys in columns.items()}
        said[f"{where}.rows.{name}.set"] = row.set
        for what, keys in said.items():
            for key in (key for axis in row.axes for key in axis.keys if _over(key, keys)):
                raise UserError(
                    f"{where}: {key} is tuned for row {name}, and {what} sets it; leave one out "
                    f"(`space: {{{key}: null}}` in the row tunes all else)"
                )


def _over(key: str, others: Iterable[str]) -> list[str]:
    """The keys that set the same as `key`, a part of it, or what it is a part of."""
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


def _check_metrics(rows: Mapping[str, RowPlan], table: Table, where: str) -> None:
    """Refuse what stands for a metric that the table does not have, or for one that it must."""
    needed = [table.metrics[0], table.choose or table.metrics[0]]
    metrics = [*table.metrics, *needed]
    for name, row in rows.items():
        if row.control and _less_is_better(table.metrics[0]):
            raise UserError(
                f"{where}.rows.{name}.control: of {table.metrics[0]}, the table's first metric, "
                "less is better, and a control asks how much more a method has; put another first"
            )
        for metric, own in row.metrics.items():
            if metric not in metrics:
                raise UserError(
                    f"{where}.rows.{name}.metrics: the table has no metric {shown(metric)}."
                    f"{nearest(metric, metrics)}"
                )
            if own is None and metric in needed:
                raise UserError(
                    f"{where}.rows.{name}.metrics: a row must measure {metric}, by which the table "
                    "compares or chooses; name what stands for it, or leave the row out"
                )


def _check_claims(claims: Sequence[Claim], rows: Mapping[str, RowPlan], where: str) -> None:
    """Refuse to compare a share with what is none, or a number that a row does not have."""
    from fedray.evaluation.metrics import declared_metrics

    for claim in claims:
        units = [find_metric(name, declared_metrics()) for name in (claim.metric, claim.than)]
        if len({each.unit for each in units if each is not None}) > 1:
            raise UserError(f"{where}.claims: {shown(claim.text)} compares unlike units")
        for side, metric in ((claim.better, claim.metric), (claim.worse, claim.than)):
            if rows[side.row].metrics.get(metric, metric) is None:
                raise UserError(
                    f"{where}.claims: {shown(claim.text)} is about {metric}, which row {side.row} "
                    "does not have (metrics: null); leave the claim out"
                )


def _less_is_better(name: str) -> bool:
    from fedray.evaluation.metrics import declared_metrics

    metric = find_metric(name, declared_metrics())
    return metric is not None and metric.direction == "min"


def _usual_claims(table: Table, rows: Mapping[str, RowPlan]) -> list[Any]:
    """Each method of the file is better than each baseline, by the table's first metric."""
    sign = "<" if _less_is_better(table.metrics[0]) else ">"
    ours = [name for name in rows if name in table.rows and rows[name].control is None]
    others = [name for name in rows if name not in table.rows]
    return [f"{name} {sign} {other}" for name in ours for other in others]


def _of_rows(claims: Sequence[Any], rows: Mapping[str, RowPlan], known: Sequence[str]) -> list[Any]:
    """The claims whose rows this scale has."""
    gone = [name for name in known if name not in rows]

    def is_asked(claim: Any) -> bool:
        text = str(claim.get("claim", "")) if isinstance(claim, Mapping) else str(claim)
        return not rows_in(text) & set(gone)

    return [claim for claim in claims if is_asked(claim)]
