"""Formatting of numbers and names in the cells of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedray.results.paired import FEW, Interval
from fedray.storage.metric import Metric

NOTHING = "–"
SPREAD = "± half of the 95 % t interval over"
"""The meaning of ± in all output of fedray."""


def metric_name(metric: Metric, unit: str = " (%)") -> str:
    """Return a metric's display name; `unit` is appended for shares."""
    return metric.name.replace("_", " ") + (unit if metric.is_share else "")


def short_name(metric: Metric) -> str:
    """Return a metric's name for a narrow column."""
    return metric.name.replace("_", " ").replace("accuracy", "acc.")


def scale_of(metric: Metric) -> float:
    """Return the factor from a metric to its displayed unit: 100 for shares, which are percent."""
    return 100.0 if metric.is_share else 1.0


def cell(interval: Interval | None, metric: Metric) -> str:
    """Format an interval as "mean ± half", shares in percent; a single value has no ±."""
    if interval is None:
        return NOTHING
    if metric.is_share:
        mean, half = f"{100 * interval.mean:.2f}", f"{100 * interval.half:.2f}"
    else:
        mean, half = f"{interval.mean:.4g}", f"{interval.half:.2g}"
    return mean if not math.isfinite(interval.half) else f"{mean} ± {half}"


def spread_cell(interval: Interval | None, metric: Metric) -> str:
    """Format an interval as `cell` does, or below `FEW` seeds as "mean (lowest–highest)"."""
    if interval is None or interval.n == 1 or not is_range(interval):
        return cell(interval, metric)
    low, high = interval.spread
    if metric.is_share:
        return f"{100 * interval.mean:.2f} ({100 * low:.1f}–{100 * high:.1f})"
    return f"{interval.mean:.4g} ({low:.3g}–{high:.3g})"


def is_range(interval: Interval) -> bool:
    """Return True if the ends of `Interval.spread` are the lowest and the highest value."""
    return 1 < interval.n < FEW and bool(interval.values)


def spread_label(intervals: Iterable[Interval | None]) -> str:
    """Return what stands beside a mean: "mean ± ... over 5 seeds", "mean and range of 2 seeds"."""
    several = [interval for interval in intervals if interval is not None and interval.n > 1]
    if not several:
        return ""
    seeds = max(interval.n for interval in several)
    if any(map(is_range, several)):
        return f"mean and range of {seeds} seeds"
    return f"mean {SPREAD} {seeds} seeds"


def signed(interval: Interval | None, metric: Metric) -> str:
    """Format a difference as by `cell`, with its sign."""
    sign = "+" if interval is not None and interval.mean >= 0 else ""
    return sign + cell(interval, metric)


def p_text(p: float | None) -> str:
    """Format a p-value with two significant digits."""
    return NOTHING if p is None else f"{p:.2g}"


def in_megabytes(count: float) -> str:
    """Format a number of bytes in MB (10^6) with three significant digits."""
    size = count / 1e6
    return f"{size:.0f}" if size >= 100 or size == 0 else f"{size:.3g}"
