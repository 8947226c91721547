"""A claim: an inequality between two cells of a table, two rows, or two metrics of a row.

{better: fedtsp, worse: [local, fedproto]}                 two claims, by the mean over all columns
{better: fedtsp, worse: local, on: each, margin: 1.5}      in each column, by more than 1.5 points
{better: fedtsp @ Dir(0.1), worse: fedtsp @ Dir(0.5)}      two columns of a row
{better: fedmgp, worse: fedmgp, metric: accuracy_base, than: accuracy_novel}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from fedray.base.errors import UserError, nearest, shown
from fedray.config import Frozen
from fedray.results.paired import Side

ALL = "all"
"""The column of a table that has no settings."""
MEAN = "mean"
EACH = "each"


class ClaimEntry(Frozen):
    """One or several claims, as a table's file writes them."""

    better: str
    """The row that is claimed to be better, `row`, or a cell, `row @ column`."""
    worse: str | list[str]
    """The other row or cell; of a list, each is a claim."""
    margin: float = 0.0
    """The least difference that is claimed, in the unit of the table (of a share: per cent)."""
    on: str = MEAN
    """The column for sides that name none: `mean` over the columns, `each` (one claim per column),
    or a column's name."""
    metric: str | None = None
    """The metric; None: the table's first."""
    than: str | None = None
    """The metric of the worse side; None: `metric`."""
    source: str = Field("", max_length=300)
    """Who makes the claim, and where."""

    @property
    def losers(self) -> list[str]:
        """The worse sides."""
        return [self.worse] if isinstance(self.worse, str) else self.worse

    def without(self, rows: set[str]) -> list[ClaimEntry]:
        """Return the entry without claims about these rows; an empty list if none is left."""
        losers = [side for side in self.losers if row_of(side) not in rows]
        if row_of(self.better) in rows or not losers:
            return []
        return [self if losers == self.losers else self.model_copy(update={"worse": losers})]


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
    """

    better: Side
    worse: Side
    margin: float
    metric: str
    than: str
    source: str

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
    entries: Sequence[ClaimEntry],
    rows: Sequence[str],
    columns: Sequence[str],
    metrics: Sequence[str],
) -> list[Claim]:
    """Return the claims of a file; `on: each` gives one claim per column.

    Repeated claims are merged and keep the first source, so that they count once in the correction.

    Raises:
        UserError: for an entry that names an unknown row, column or metric, or compares one column
            with the mean over all, or a cell with itself.
    """
    known = {"row": rows, "column": [*columns, MEAN], "metric": metrics}
    claims: dict[Test, Claim] = {}
    for entry in entries:
        for worse in entry.losers:
            for column in columns if entry.on == EACH else [entry.on]:
                claim = _parse_claim(entry, worse, column, known)
                claims.setdefault(claim.test, claim)
    return list(claims.values())


def row_of(side: str) -> str:
    """Return the row that a side of a claim names."""
    return side.partition("@")[0].strip()


def _parse_claim(
    entry: ClaimEntry, worse: str, on: str, known: Mapping[str, Sequence[str]]
) -> Claim:
    """Return a claim of an entry, with the column `on` for sides that name none."""
    text = f"claims: {entry.better} > {worse}"

    def check(kind: str, name: str) -> str:
        if name not in known[kind]:
            near = nearest(name, known[kind])
            raise UserError(f"{text}: there is no {kind} {shown(name)}.{near}")
        return name

    def side(written: str) -> Side:
        column = check("column", written.partition("@")[2].strip() or on)
        if column == MEAN and len(known["column"]) == 2:
            column = known["column"][0]
        return Side(check("row", row_of(written)), None if column == MEAN else column)

    metric = check("metric", entry.metric or known["metric"][0])
    claim = Claim(
        side(entry.better),
        side(worse),
        entry.margin,
        metric,
        check("metric", entry.than or metric),
        entry.source,
    )
    if (claim.better.column is None) != (claim.worse.column is None):
        raise UserError(
            f"{text} compares one column with a mean over all columns; name a column on both "
            "sides, or on none"
        )
    if (claim.better, claim.metric) == (claim.worse, claim.than):
        raise UserError(f"{text} compares a cell with itself")
    return claim
