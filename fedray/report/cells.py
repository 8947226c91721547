"""Numbers and names as the cells of a table have them."""

from __future__ import annotations

from fedray.records import Metric
from fedray.report.runs import Stat

NOTHING = "–"


def pretty(metric: Metric) -> str:
    """A metric's name for people, with its unit."""
    return metric.name.replace("_", " ") + (" (%)" if metric.is_share else "")


def cell(stat: Stat | None, metric: Metric) -> str:
    """Mean ± standard deviation; without the latter for one seed."""
    if stat is None:
        return NOTHING
    if metric.is_share:
        mean, std = f"{100 * stat.mean:.2f}", f"{100 * stat.std:.2f}"
    else:
        mean, std = f"{stat.mean:.4g}", f"{stat.std:.2g}"
    return f"{mean} ± {std}" if stat.n > 1 else mean


def in_megabytes(count: float) -> str:
    """Bytes as a number of MB (10^6), with three digits that count."""
    size = count / 1e6
    return f"{size:.0f}" if size >= 100 or size == 0 else f"{size:.3g}"


def short(metric: Metric) -> str:
    """A metric's name for a narrow column."""
    return metric.name.replace("_", " ").replace("accuracy", "acc.")
