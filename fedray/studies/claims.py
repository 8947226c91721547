"""A claim: an inequality between two cells of a table, the means of two rows, or two metrics.

fedtsp > fedproto                    rows, by the mean over all columns
fedtsp @ Dir(0.1) > fedproto @ Dir(0.1)
fedtsp > local + 1.5                 by more than 1.5 points (of a share: per cent)
fedmgp: accuracy_base > accuracy_novel     two metrics of one row
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from fedray.compare.paired import Side
from fedray.config import Frozen, validate
from fedray.errors import UserError, nearest, shown

EXAMPLE = "for example: fedtsp > fedproto + 0.5"
ALL = "all"
"""The column of a table that has no settings."""
MEAN = "mean"
EACH = "each"
_FORM = re.compile(
    r"^(?P<left>[^<>]+?)\s*(?P<sign>[<>])\s*(?P<right>[^<>]+?)"
    r"(?:\s+(?P<plus>[+-])\s*(?P<margin>\d+(?:\.\d*)?))?$"
)
_WITHIN = re.compile(r"^(?P<side>[^<>:]+?)\s*:\s*(?P<metrics>[^:]+)$")
"""A row, and the inequality between two of its metrics."""


class ClaimEntry(Frozen):
    """A claim as a file writes it, where it says more than its inequality."""

    claim: str
    """The inequality."""
    on: str = MEAN
    """Where it is asked, for sides that name no column: `mean` over the columns, `each` of them (a
    claim for every column), or a column."""
    metric: str | None = None
    """Another metric than the table's first."""
    source: str = Field("", max_length=300)
    """Who says it, and where."""


Test = tuple[Side, Side, float, str, str]
"""The sides, the margin, and a metric of each side."""


@dataclass(frozen=True)
class Claim:
    """left > right + margin, of a metric.

    Attributes:
        better: the side that is claimed to be larger.
        worse: the other one.
        margin: by how much more, in the unit that the table shows (points of a share).
        metric: what is compared, of the better side.
        than: with which metric of the worse one; the same, but where two of one row are compared.
        source: who says it.
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
        """The same of two claims that one test decides in the same way."""
        return self.better, self.worse, self.margin, self.metric, self.than

    @property
    def question(self) -> str:
        """The inequality with its columns; where it is about two metrics, with these."""
        sign = "-" if self.margin < 0 else "+"
        margin = f" {sign} {abs(self.margin):g}" if self.margin else ""
        if self.than != self.metric:
            return f"{self.better}: {self.metric} > {self.than}{margin}"
        return f"{self.better} > {self.worse}{margin}"


def parse_claims(
    entries: Sequence[Any], rows: Sequence[str], columns: Sequence[str], metrics: Sequence[str]
) -> list[Claim]:
    """Return the claims of a file, one that is asked of each column as several.

    A claim that is written twice is one, with the first source: as two it would count twice in the
    correction.

    Raises:
        UserError: for an inequality that is none, names a row, column or metric that is not there,
            compares one column with the mean over all, or is the opposite of another.
    """
    found: dict[Test, Claim] = {}
    for entry in entries:
        tree = {"claim": entry} if isinstance(entry, str) else entry
        if not isinstance(tree, Mapping):
            raise UserError(f"claims: {shown(entry)} is no inequality; {EXAMPLE}")
        given = validate(ClaimEntry, tree, "claims")
        claim = _parsed(given, rows, columns, metrics)
        asked = columns if given.on == EACH else [given.on]
        for each in (_at(claim, None if at == MEAN else at, columns) for at in asked):
            _check_opposite(each, found)
            found.setdefault(each.test, each)
    return list(found.values())


def _check_opposite(claim: Claim, known: Mapping[Test, Claim]) -> None:
    """Refuse a > b together with b > a: one test decides both."""
    better, worse, margin, metric, than = claim.test
    other = known.get((worse, better, -margin, than, metric))
    if other is not None:
        raise UserError(
            f"claims: {shown(other.text)} and {shown(claim.text)} are opposites, which one test "
            "decides; leave one out"
        )


def rows_in(claim: str) -> set[str]:
    """Return the rows that an inequality names; none where it is none."""
    within = _WITHIN.match(claim.strip())
    match = _FORM.match(claim.strip())
    sides = [match["left"], match["right"]] if match is not None else []
    sides = [within["side"]] if within is not None else sides
    return {side.partition("@")[0].strip() for side in sides}


def _parsed(
    given: ClaimEntry, rows: Sequence[str], columns: Sequence[str], metrics: Sequence[str]
) -> Claim:
    text = given.claim.strip()
    within = _WITHIN.match(text)
    match = _FORM.match(text if within is None else within["metrics"].strip())
    if match is None:
        raise UserError(f"claims: {shown(given.claim)} is no inequality between rows; {EXAMPLE}")
    left, right = match["left"], match["right"]
    margin = float(match["margin"] or 0) * (-1 if match["plus"] == "-" else 1)
    if match["sign"] == "<":  # a < b + m is b > a - m
        left, right, margin = right, left, -margin
    if within is None:
        metric = _metric(given.metric or metrics[0], metrics)
        better, worse = (_side(side, rows, columns, given.claim) for side in (left, right))
        if better == worse:
            raise UserError(f"claims: {shown(given.claim)} compares a row with itself")
        return Claim(better, worse, margin, metric, metric, given.source, text)
    if given.metric is not None:
        raise UserError(f"claims: {shown(given.claim)} names its metrics; leave metric: out")
    side = _side(within["side"], rows, columns, given.claim)
    metric, than = (_metric(name, metrics) for name in (left, right))
    if metric == than:
        raise UserError(f"claims: {shown(given.claim)} compares a metric with itself")
    return Claim(side, side, margin, metric, than, given.source, text)


def _metric(name: str, metrics: Sequence[str]) -> str:
    if name not in metrics:
        raise UserError(
            f"claims: metric {shown(name)} is none of the table's metrics.{nearest(name, metrics)}"
        )
    return name


def _side(text: str, rows: Sequence[str], columns: Sequence[str], claim: str) -> Side:
    row, sign, column = (part.strip() for part in text.partition("@"))
    if row not in rows:
        raise UserError(
            f"claims: {shown(claim)}: there is no row {shown(row)}.{nearest(row, rows)}"
        )
    if sign and column not in columns:
        raise UserError(
            f"claims: {shown(claim)}: there is no column {shown(column)}.{nearest(column, columns)}"
        )
    return Side(row, column if sign else None)


def _at(claim: Claim, column: str | None, columns: Sequence[str]) -> Claim:
    """Return the claim at a column, for sides that name none."""
    if column is not None and column not in columns:
        ways = f"expected {MEAN}, {EACH} or a column"
        raise UserError(f"claims: on: {shown(column)}, {ways}.{nearest(column, columns)}")
    if column is None and len(columns) == 1:
        column = columns[0]
    better, worse = (
        side if side.column is not None else Side(side.row, column)
        for side in (claim.better, claim.worse)
    )
    if (better.column is None) != (worse.column is None):
        raise UserError(
            f"claims: {shown(claim.text)} compares one column with a mean over all columns; name a "
            "column on both sides, or on none"
        )
    return replace(claim, better=better, worse=worse)
