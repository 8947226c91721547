"""Short texts for values and configurations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fedray.base.errors import one_line

LONGEST = 100
"""Maximum number of characters of a value."""


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each dotted key; the key where last parts collide or say "name"."""
    last = {key: key.rsplit(".", 1)[-1] for key in keys}
    count = Counter(last.values())
    return {k: k if n == "name" or count[n] > 1 else n for k, n in last.items()}


def show_value(value: Any) -> str:
    """Return a short text of a value; for a component, its name and then its parameters."""
    if isinstance(value, Mapping) and "name" in value:
        params = (f"{key}={show_value(v)}" for key, v in value.items() if key != "name")
        return " ".join([str(value["name"]), *params])[:LONGEST]
    return f"{value:.4g}" if isinstance(value, float) else one_line(value)[:LONGEST]


def config_label(config: Mapping[str, Any]) -> str:
    """Return a short text of a configuration: "lambda=7 tau=0.1"."""
    names = short_names(config)
    return " ".join(f"{names[key]}={show_value(value)}" for key, value in config.items())


def is_number(value: Any) -> bool:
    """Return True for a finite number; False for a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def text_of(value: Any) -> str:
    """Return a text for comparing values; 7 and 7.0 have equal texts."""
    return repr(float(value)) if is_number(value) else repr(value)
