"""A claim: an inequality between two cells of a table, two rows, or two metrics of a row.

fedtsp > fedproto                          rows, by the mean over all columns
fedtsp @ Dir(0.1) > fedproto @ Dir(0.1)
fedtsp > local + 1.5                       by more than 1.5 points (of a share: per cent)
fedmgp: accuracy_base > accuracy_novel     two metrics of one row
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from fedray.base.errors import UserError, nearest, shown
from fedray.config import Frozen, validate
from fedray.results.paired import Side

ALL = "all"
"""The column of a table that has no settings."""
MEAN = "mean"
EACH = "each"
_FORM = re.compile(
    r"(?:(?P<row>[^<>:]+):)? *(?P<left>[^<>:]+?) *> *(?P<right>[^<>:]+?)"
    r"(?: +(?P<sign>[+-]) *(?P<margin>\d+(?:\.\d*)?))?"
)


class ClaimEntry(Frozen):
    """A claim as a table's file writes it."""

    claim: str
    """The inequality."""
    on: str = MEAN
    """The column for sides that name none: `mean` over the columns, `each` (one claim per column),
    or a column's name."""
    metric: str | None = None
    """The metric; None: the table's first."""
    source: str = Field("", max_length=300)
    """Who makes the claim, and where."""


Test = tuple[Side, Side, float, str, str]
"""The sides, the margin, and a metric of each side."""


@dataclass(frozen=True)
class Claim:
    """An inequality: better > worse + margin.

    Attributes:
        better: the side that is claimed to be larger.
        worse: the other side.
        margin: the claimed minimum difference, in the unit of the table (percentage points).
        metric: metric of the better side.
        than: metric of the worse side; differs from `metric` if two metrics of a row are compared.
        source: who makes the claim.
        text: the inequality as written.
    """

    better: Side
    worse: Side
    margin: float
    metric: str
    than: str
    source: str
    text: str

    @property
    def test(self) -> Test:
        """Key of the statistical test; claims with equal keys have the same verdict."""
        return self.better, self.worse, self.margin, self.metric, self.than

    @property
    def question(self) -> str:
        """The inequality with its columns, and with its metrics where they differ."""
        sign = "-" if self.margin < 0 else "+"
        margin = f" {sign} {abs(self.margin):g}" if self.margin else ""
        if self.than != self.metric:
            return f"{self.better}: {self.metric} > {self.than}{margin}"
        return f"{self.better} > {self.worse}{margin}"


def parse_claims(
    entries: Sequence[Any], rows: Sequence[str], columns: Sequence[str], metrics: Sequence[str]
) -> list[Claim]:
    """Return the claims of a file; `on: each` gives one claim per column.

    Repeated claims are merged and keep the first source, so that they count once in the correction.

    Raises:
        UserError: for an entry that is no inequality, names an unknown row, column or metric, or
            compares one column with the mean over all.
    """
    claims: dict[Test, Claim] = {}
    for tree in entries:
        if not isinstance(tree, Mapping):
            raise UserError(f"claims: {shown(tree)} has no keys; write {{claim: a > b}}")
        entry = validate(ClaimEntry, tree, "claims")
        named = {"row": rows, "column": [*columns, MEAN], "metric": metrics}
        for column in columns if entry.on == EACH else [entry.on]:
            claim = _parse_claim(entry, column, named, is_single=len(columns) == 1)
            claims.setdefault(claim.test, claim)
    return list(claims.values())


def check_row_name(name: str, where: str) -> None:
    """Raise an error for the name of a row that no claim could name.

    Raises:
        UserError: naming the row, and `label`, which may be any text.
    """
    match = _FORM.fullmatch(f"{name} > {name}")
    if match is None or not match["left"] == match["right"] == name or "@" in name:
        raise UserError(
            f"{where}: {shown(name)} cannot be the name of a row, because claims name rows: leave "
            "out <, >, :, @, blanks at its ends and a margin such as + 1; `label:` of the row may "
            "be any text"
        )


def rows_in(claim: str) -> set[str]:
    """Return the rows that an inequality names; an empty set if `claim` is no inequality."""
    match = _FORM.fullmatch(claim.strip())
    sides = (
        [] if match is None else [match["row"]] if match["row"] else match.group("left", "right")
    )
    return {side.partition("@")[0].strip() for side in sides}


def _parse_claim(
    entry: ClaimEntry, on: str, named: Mapping[str, Sequence[str]], *, is_single: bool
) -> Claim:
    """Return the claim of an entry, with the column `on` for sides that name none."""

    def known(kind: str, name: str) -> str:
        if name not in named[kind]:
            near = nearest(name, named[kind])
            raise UserError(f"claims: {shown(text)}: there is no {kind} {shown(name)}.{near}")
        return name

    def side(written: str) -> Side:
        row, _, own = (part.strip() for part in written.partition("@"))
        column = known("column", own or on)
        if column == MEAN and is_single:
            column = named["column"][0]
        return Side(known("row", row), None if column == MEAN else column)

    text = entry.claim.strip()
    match = _FORM.fullmatch(text)
    if match is None:
        example = "for example: fedtsp > fedproto + 0.5"
        raise UserError(f"claims: {shown(text)} is no inequality between rows; {example}")
    margin = float(f"{match['sign'] or ''}{match['margin'] or 0}")
    metric = known("metric", entry.metric or named["metric"][0])
    metrics, sides = (metric, metric), match.group("left", "right")
    if match["row"]:
        if entry.metric is not None:
            raise UserError(f"claims: {shown(text)} names its metrics; leave metric: out")
        metrics = known("metric", match["left"]), known("metric", match["right"])
        sides = match["row"], match["row"]
    better, worse = map(side, sides)
    if (better.column is None) != (worse.column is None):
        raise UserError(
            f"claims: {shown(text)} compares one column with a mean over all columns; name a "
            "column on both sides, or on none"
        )
    if (better, metrics[0]) == (worse, metrics[1]):
        raise UserError(f"claims: {shown(text)} compares a cell with itself")
    return Claim(better, worse, margin, *metrics, entry.source, text)
