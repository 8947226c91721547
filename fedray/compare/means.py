"""Means over data sets, as the papers' ablations report them.

One definition for reports and sweeps: in each seed the mean over data sets, then the mean over
seeds. What papers compute of means (FedMGP, Table 1) is computed of each seed's means, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, harmonic_mean
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedray.compare.paired import Interval, t_interval
from fedray.records import HEADLINE

if TYPE_CHECKING:
    import pandas

PARTS = (HEADLINE, "accuracy_base", "accuracy_novel")


def _hm(local: float, base: float, novel: float) -> float:
    return harmonic_mean([base, novel])


def _cm(local: float, base: float, novel: float) -> float:
    return (local + harmonic_mean([base, novel])) / 2


OF_MEANS: Mapping[str, tuple[Callable[[float, float, float], float], Sequence[str]]] = (
    MappingProxyType({"accuracy_hm": (_hm, PARTS[1:]), "accuracy_cm": (_cm, PARTS)})
)
"""Metrics that papers also compute of means over data sets: how, of which metrics."""


def over_columns(
    values: pandas.DataFrame, metric: str, columns: Sequence[str]
) -> dict[str, Interval]:
    """Return each row's mean over data sets; without rows that lack one.

    Args:
        values: a line for each run, with the columns row, column, seed and one for each metric.
        metric: what is averaged.
        columns: the data sets.
    """
    means = {}
    for row, by_seed in _by_seed(values, metric, columns).items():
        if by_seed:
            means[row] = t_interval([fmean(numbers) for numbers in by_seed.values()])
    return means


def of_means(values: pandas.DataFrame, metric: str, columns: Sequence[str]) -> dict[str, Interval]:
    """Return a metric of `OF_MEANS` computed of means over data sets; arguments as `over_columns`.

    Seeds count that have all its parts on all data sets.
    """
    compute, needed = OF_MEANS[metric]
    parts = {name: _by_seed(values, name, columns) for name in needed if name in values}
    if len(parts) < len(needed):
        return {}
    found = {}
    for row in parts[needed[0]]:
        seeds = [parts[name].get(row, {}) for name in needed]
        common = [seed for seed in seeds[0] if all(seed in part for part in seeds)]
        numbers = [
            compute(*(fmean(parts[name][row][seed]) if name in parts else 0.0 for name in PARTS))
            for seed in common
        ]
        if numbers:
            found[row] = t_interval(numbers)
    return found


def _by_seed(
    values: pandas.DataFrame, metric: str, columns: Sequence[str]
) -> dict[str, dict[int, list[float]]]:
    """Return each row's numbers on all data sets, by seed; without seeds that lack one."""
    if metric not in values:
        return {}
    wide = values.pivot(index=["row", "seed"], columns="column", values=metric)
    wide = wide.reindex(columns=list(columns)).dropna()
    by_row: dict[str, dict[int, list[float]]] = {}
    for (row, seed), numbers in wide.iterrows():
        by_row.setdefault(row, {})[int(seed)] = [float(number) for number in numbers]
    return by_row
