"""Formatting of numbers and names in the cells of tables.

Numbers are in the unit that is shown: shares in per cent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from fedray.base.units import size_of, time_of
from fedray.results.paired import FEW, Interval
from fedray.storage.metric import Metric

NOTHING = "–"
SPREAD = "± half of the 95 % t interval over"
"""The meaning of ± in all output of fedray."""


def metric_name(metric: Metric) -> str:
    """Return a metric's display name, with the unit of shares."""
    return metric.name.replace("_", " ") + " (%)" * metric.is_share


def short_name(metric: Metric) -> str:
    """Return a metric's name for a narrow column."""
    return metric.name.replace("_", " ").replace("accuracy", "acc.")


def number(value: float, metric: Metric, half: float = 0.0) -> str:
    """Format a number: two decimals of a share, or four significant digits.

    A share with an interval of at least ± 1 has one decimal.
    """
    if metric.is_share:
        return f"{value:.1f}" if 1 <= half < math.inf else f"{value:.2f}"
    return f"{value:.4g}"


def cell(interval: Interval | None, metric: Metric, sign: str = "") -> str:
    """Format an interval as "mean ± half"; a single value has no ±.

    Args:
        interval: the interval; None: the cell is empty.
        metric: its metric.
        sign: "+" to show the sign of a positive mean, too.
    """
    if interval is None:
        return NOTHING
    half = interval.half
    mean = (sign if interval.mean >= 0 else "") + number(interval.mean, metric, half)
    if not math.isfinite(half):
        return mean
    return f"{mean} ± {number(half, metric, half) if metric.is_share else f'{half:.2g}'}"


def spread_cell(interval: Interval | None, metric: Metric) -> str:
    """Format an interval as `cell` does, or below `FEW` seeds as "mean (lowest–highest)"."""
    if interval is None or not is_range(interval):
        return cell(interval, metric)
    low, high = interval.spread
    texts = [number(value, metric, high - low) for value in (interval.mean, low, high)]
    return f"{texts[0]} ({texts[1]}–{texts[2]})"


def difference_cell(interval: Interval | None, metric: Metric) -> str:
    """Format a difference with its interval: "+1.2 [-0.3, 2.7]"."""
    if interval is None:
        return NOTHING
    ends = (interval.mean, interval.low, interval.high)
    mean, low, high = (number(value, metric, interval.half) for value in ends)
    text = mean if interval.mean < 0 else f"+{mean}"
    return f"{text} [{low}, {high}]" if math.isfinite(interval.half) else text


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


def p_text(p: float | None) -> str:
    """Format a p-value with two significant digits."""
    return NOTHING if p is None else f"{p:.2g}"


def range_text(values: Iterable[float]) -> str:
    """Format whole numbers as "3", or as "3 to 5" if they differ; none as `NOTHING`."""
    found = sorted({int(value) for value in values})
    return " to ".join(map(str, dict.fromkeys(found[:1] + found[-1:]))) or NOTHING


def cost_text(seconds: Iterable[float], traffic: Iterable[float]) -> str:
    """Format the mean cost of runs: "2 min 24 s, 35.5 MB"; that of no run as `NOTHING`."""
    found = list(seconds)
    return f"{time_of(fmean(found))}, {size_of(fmean(traffic))}" if found else NOTHING


def in_megabytes(count: float) -> str:
    """Format a number of bytes in MB (10^6) with three significant digits."""
    size = count / 1e6
    return f"{size:.0f}" if size >= 100 or size == 0 else f"{size:.3g}"
