"""The one frame of numbers of tables, sweeps, reports and analyses, and what is computed from it.

A frame has the columns `COLUMNS` and a row for each run and metric. Shares are in per cent. Every
metric of a run is read in the one round that was chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, harmonic_mean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedray.results.paired import Comparison, Interval, PairedTest, Side, compare, t_interval
from fedray.storage.metric import HEADLINE, Metric

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "row",
    "column",
    "seed",
    "metric",
    "value",
    "round",
    "seconds",
    "bytes",
    "status",
    "folder",
)
OF_MEANS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "accuracy_hm": ("accuracy_base", "accuracy_novel"),
        "accuracy_cm": ("accuracy_base", "accuracy_novel", HEADLINE),
    }
)
"""Metrics that papers also compute from means over data sets (FedMGP, Table 1), and their parts."""


def scale_of(metric: Metric) -> float:
    """Return the factor from a metric to its displayed unit: 100 for shares, which are percent."""
    return 100.0 if metric.is_share else 1.0


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of rows and columns over seeds.

    Attributes:
        frame: a line for each run and metric, see `COLUMNS`. `status` is "finished", or of a value
            that is missing (NaN) the reason.
        columns: the columns, whose mean is that of a row.
        test: the test of differences.
        from_means: metrics of `OF_MEANS` whose mean over columns is computed from means.
    """

    frame: pandas.DataFrame
    columns: Sequence[str]
    test: PairedTest = PairedTest()
    from_means: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        lines: Iterable[Sequence[Any]],
        columns: Iterable[str],
        test: PairedTest | None = None,
        further: Iterable[str] = (),
    ) -> Numbers:
        """Return the numbers of a frame's lines, which may have `further` columns at their end."""
        import pandas

        frame = pandas.DataFrame(list(lines), columns=[*COLUMNS, *further])
        return cls(frame, list(dict.fromkeys(columns)), test or PairedTest())

    @cached_property
    def _cells(self) -> dict[tuple[str, str, str], dict[int, float]]:
        groups = self.frame.dropna(subset=["value"]).groupby(["row", "column", "metric"])
        return {
            cell: dict(zip(of["seed"].tolist(), of["value"].tolist(), strict=True))
            for cell, of in groups
        }

    def by_seed(self, side: Side, metric: str) -> dict[int, float]:
        """Return a side's numbers by seed, of the seeds that all its cells have.

        Args:
            side: cells of one row or two, whose mean is returned.
            metric: the metric.
        """
        if side.column is None and metric in self.from_means:
            return self.of_means(side, metric)
        columns = self.columns if side.column is None else [side.column]
        keys = [(row, column, metric) for row in side.rows for column in columns]
        cells = [self._cells.get(key, {}) for key in keys]
        seeds = [seed for seed in cells[0] if all(seed in cell for cell in cells)]
        return {seed: fmean(cell[seed] for cell in cells) for seed in seeds}

    def interval(self, side: Side, metric: str) -> Interval | None:
        """Return the mean over seeds with its interval; None if the side has no numbers."""
        values = list(self.by_seed(side, metric).values())
        return t_interval(values, self.test.confidence) if values else None

    def compare(
        self, better: Side, worse: Side, metric: str, than: str | None = None, margin: float = 0.0
    ) -> Comparison:
        """Return the comparison of two sides; `than` is the worse side's metric, None: the same."""
        values = self.by_seed(better, metric), self.by_seed(worse, than or metric)
        return compare(better, worse, values, self.test, margin)

    def of_means(self, side: Side, metric: str) -> dict[int, float]:
        """Return a metric of `OF_MEANS` by seed, computed from a side's means over columns."""
        base, novel, *others = [self.by_seed(side, part) for part in OF_MEANS[metric]]
        return {
            seed: fmean([harmonic_mean([base[seed], novel[seed]]), *(o[seed] for o in others)])
            for seed in base
            if all(seed in part for part in (novel, *others))
        }
