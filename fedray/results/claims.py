"""A claim: an inequality between two cells of a table, two rows, means of rows, or two metrics.

fedtsp > fedproto                    rows, by the mean over all columns
fedtsp @ Dir(0.1) > fedproto @ Dir(0.1)
fedtsp > local + 1.5                 by more than 1.5 points (of a share: per cent)
random > mean(fedtsp, local)         the mean of two rows, seed by seed
fedmgp: accuracy_base > accuracy_novel     two metrics of one row
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from fedray.base.errors import UserError, nearest, shown
from fedray.config import Frozen, validate
from fedray.results.paired import Side

EXAMPLE = "for example: fedtsp > fedproto + 0.5"
ALL = "all"
"""The column of a table that has no settings."""
MEAN = "mean"
EACH = "each"
_FORM = re.compile(
    r"^(?P<left>[^<>]+?)\s*(?P<sign>[<>])\s*(?P<right>[^<>]+?)"
    r"(?:\s+(?P<plus>[+-])\s*(?P<margin>\d+(?:\.\d*)?))?$"
)
_MEAN_OF = re.compile(r"^mean\((?P<row>[^,]+),(?P<other>[^,]+)\)$")
_WITHIN = re.compile(r"^(?P<side>[^<>:]+?)\s*:\s*(?P<metrics>[^:]+)$")
"""A row, and the inequality between two of its metrics."""


class ClaimEntry(Frozen):
    """A claim of a table's file, written with keys."""

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
        UserError: for an entry that is no inequality, names an unknown row, column or metric,
            compares one column with the mean over all, or is the opposite of another.
    """
    claims: dict[Test, Claim] = {}
    for entry in entries:
        tree = {"claim": entry} if isinstance(entry, str) else entry
        if not isinstance(tree, Mapping):
            raise UserError(f"claims: {shown(entry)} is no inequality; {EXAMPLE}")
        parsed = validate(ClaimEntry, tree, "claims")
        claim = _parse_claim(parsed, rows, columns, metrics)
        scopes = columns if parsed.on == EACH else [parsed.on]
        for column_claim in (
            _claim_at(claim, None if at == MEAN else at, columns) for at in scopes
        ):
            _check_opposite(column_claim, claims)
            claims.setdefault(column_claim.test, column_claim)
    return list(claims.values())


def _check_opposite(claim: Claim, claims: Mapping[Test, Claim]) -> None:
    """Raise an error if `claims` has the opposite inequality: one test decides both."""
    better, worse, margin, metric, than = claim.test
    other = claims.get((worse, better, -margin, than, metric))
    if other is not None:
        raise UserError(
            f"claims: {shown(other.text)} and {shown(claim.text)} are opposites, which one test "
            "decides; leave one out"
        )


def check_row_name(name: str, where: str) -> None:
    """Raise an error for the name of a row that no claim could name.

    Raises:
        UserError: naming the row, and `label`, which may be any text.
    """
    match = _FORM.match(f"{name} > {name}")
    is_side = match is not None and match["left"] == match["right"] == name
    if not is_side or "@" in name or ":" in name or name.startswith("mean("):
        raise UserError(
            f"{where}: {shown(name)} cannot be the name of a row, because claims name rows: leave "
            "out <, >, :, @, mean(, blanks at its ends and a margin such as + 1; `label:` of the "
            "row may be any text"
        )


def rows_in(claim: str) -> set[str]:
    """Return the rows that an inequality names; an empty set if `claim` is no inequality."""
    within = _WITHIN.match(claim.strip())
    match = _FORM.match(claim.strip())
    sides = [match["left"], match["right"]] if match is not None else []
    sides = [within["side"]] if within is not None else sides
    return {row for side in sides for row in _side(side)[0]}


def _side(text: str) -> tuple[list[str], str | None]:
    """Return the row, or the two rows, that a side names, and its column."""
    name, sign, column = (part.strip() for part in text.partition("@"))
    match = _MEAN_OF.match(name)
    rows = [name] if match is None else [match["row"].strip(), match["other"].strip()]
    return rows, column if sign else None


def _parse_claim(
    entry: ClaimEntry, rows: Sequence[str], columns: Sequence[str], metrics: Sequence[str]
) -> Claim:
    text = entry.claim.strip()
    within = _WITHIN.match(text)
    match = _FORM.match(text if within is None else within["metrics"].strip())
    if match is None:
        raise UserError(f"claims: {shown(entry.claim)} is no inequality between rows; {EXAMPLE}")
    larger, smaller = match["left"], match["right"]
    margin = float(match["margin"] or 0) * (-1 if match["plus"] == "-" else 1)
    if match["sign"] == "<":  # a < b + m is b > a - m
        larger, smaller, margin = smaller, larger, -margin
    if within is None:
        metric = _check_metric(entry.metric or metrics[0], metrics)
        better, worse = (
            _parse_side(side, rows, columns, entry.claim) for side in (larger, smaller)
        )
        if better == worse:
            raise UserError(f"claims: {shown(entry.claim)} compares a row with itself")
        return Claim(better, worse, margin, metric, metric, entry.source, text)
    if entry.metric is not None:
        raise UserError(f"claims: {shown(entry.claim)} names its metrics; leave metric: out")
    side = _parse_side(within["side"], rows, columns, entry.claim)
    metric, than = (_check_metric(name, metrics) for name in (larger, smaller))
    if metric == than:
        raise UserError(f"claims: {shown(entry.claim)} compares a metric with itself")
    return Claim(side, side, margin, metric, than, entry.source, text)


def _check_metric(name: str, metrics: Sequence[str]) -> str:
    if name not in metrics:
        raise UserError(
            f"claims: metric {shown(name)} is none of the table's metrics.{nearest(name, metrics)}"
        )
    return name


def _parse_side(text: str, rows: Sequence[str], columns: Sequence[str], claim: str) -> Side:
    named, column = _side(text)
    for row in named:
        if row not in rows:
            raise UserError(
                f"claims: {shown(claim)}: there is no row {shown(row)}.{nearest(row, rows)}"
            )
    if column is not None and column not in columns:
        raise UserError(
            f"claims: {shown(claim)}: there is no column {shown(column)}.{nearest(column, columns)}"
        )
    return Side(named[0], column, *named[1:])


def _claim_at(claim: Claim, column: str | None, columns: Sequence[str]) -> Claim:
    """Return the claim with `column` on the sides that name none."""
    if column is not None and column not in columns:
        expected = f"expected {MEAN}, {EACH} or a column"
        raise UserError(f"claims: on: {shown(column)}, {expected}.{nearest(column, columns)}")
    if column is None and len(columns) == 1:
        column = columns[0]
    better, worse = (
        side if side.column is not None else replace(side, column=column)
        for side in (claim.better, claim.worse)
    )
    if (better.column is None) != (worse.column is None):
        raise UserError(
            f"claims: {shown(claim.text)} compares one column with a mean over all columns; name a "
            "column on both sides, or on none"
        )
    return replace(claim, better=better, worse=worse)
