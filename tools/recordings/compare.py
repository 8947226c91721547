"""Differences between the values of two sides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tools.recordings.names import ENTRIES, entry_of, metric_of

Values = Mapping[str, Any]


def differences(old: Values, new: Values, tolerance: float = 0.0) -> Iterator[str]:
    """Describe each value that differs; with a tolerance, hashes are not compared.

    A number that is NaN differs from every number. NaN on both sides is named as such, because
    nothing was compared there.
    """
    before = {metric_of(place): entry_of(value, ENTRIES) for place, value in old.items()}
    after = {metric_of(place): entry_of(value, ENTRIES) for place, value in new.items()}
    for place in [*before, *(place for place in after if place not in before)]:
        if tolerance and place.endswith(": hash"):
            continue
        if place not in after or place not in before:
            side = "the older commit" if place in before else "this checkout"
            yield f"{place}: in {side} only"
        elif change := _difference(before[place], after[place], tolerance):
            yield f"{place}: {change}"


def _difference(old: Any, new: Any, tolerance: float) -> str:
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return f"{len(old)} values, then {len(new)}"
        found = [_difference(a, b, tolerance) for a, b in zip(old, new, strict=True)]
        wrong = [text for text in found if text]
        return f"{len(wrong)} of {len(old)} values, the first {wrong[0]}" if wrong else ""
    if not (_is_number(old) and _is_number(new)):
        return "" if old == new else f"{old!r}, then {new!r}"
    if math.isnan(old) and math.isnan(new):
        return "NaN on both sides"
    if old == new or abs(old - new) <= tolerance * max(1.0, abs(old)):
        return ""
    return f"{old:.9g}, then {new:.9g} (by {abs(old - new):.2g})"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
