"""Means over data sets, as the papers' ablations report them.

Reports and sweeps share this definition: first the mean over data sets for each seed, then the mean
over seeds. Metrics that papers compute from means (FedMGP, Table 1) are computed from each seed's
means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import harmonic_mean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedray.results.paired import Interval, t_interval
from fedray.storage.metric import HEADLINE

if TYPE_CHECKING:
    import pandas

BASE, NOVEL = "accuracy_base", "accuracy_novel"
PARTS = (HEADLINE, BASE, NOVEL)


def _hm(means: Mapping[str, float]) -> float:
    return harmonic_mean([means[BASE], means[NOVEL]])


def _cm(means: Mapping[str, float]) -> float:
    return (means[HEADLINE] + _hm(means)) / 2


OF_MEANS: Mapping[str, tuple[Callable[[Mapping[str, float]], float], Sequence[str]]] = (
    MappingProxyType({"accuracy_hm": (_hm, (BASE, NOVEL)), "accuracy_cm": (_cm, PARTS)})
)
"""Metrics that papers also compute from means over data sets: the function and its metrics."""


def over_columns(
    values: pandas.DataFrame, metric: str, columns: Sequence[str]
) -> dict[str, Interval]:
    """Return each row's mean over data sets; rows that lack a data set are left out.

    Args:
        values: a line for each run, with the columns row, column, seed and one for each metric.
        metric: the metric to average.
        columns: the data sets.
    """
    return {} if metric not in values else _over_seeds(_by_seed(values, metric, columns))


def of_means(values: pandas.DataFrame, metric: str, columns: Sequence[str]) -> dict[str, Interval]:
    """Return a metric of `OF_MEANS`, computed from means over data sets.

    The arguments are those of `over_columns`. Seeds that lack a part on a data set are left out.
    """
    import pandas

    compute, needed = OF_MEANS[metric]
    if not {*needed} <= {*values.columns}:
        return {}
    parts = {name: _by_seed(values, name, columns) for name in needed}
    means = pandas.DataFrame(parts).dropna()
    rows = means.to_dict("records")
    return _over_seeds(pandas.Series([compute(row) for row in rows], means.index, dtype=float))


def _by_seed(values: pandas.DataFrame, metric: str, columns: Sequence[str]) -> Any:
    """Return means over data sets as a series by (row, seed), without incomplete seeds."""
    wide = values.pivot(index=["row", "seed"], columns="column", values=metric)
    return wide.reindex(columns=list(columns)).dropna().mean(axis=1)


def _over_seeds(means: Any) -> dict[str, Interval]:
    return {row: t_interval(list(of_row)) for row, of_row in means.groupby(level="row", sort=False)}
