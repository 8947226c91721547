"""Values and configurations in few words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fedray.errors import one_line

LONGEST = 100
"""Characters of a value."""


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each dotted key, or the whole key where two would be the same."""
    keys = list(keys)
    last = {key: key.rsplit(".", 1)[-1] for key in keys}
    count = Counter(last.values())
    return {key: name if count[name] == 1 else key for key, name in last.items()}


def show_value(value: Any) -> str:
    """Return a value in few characters; of a component its name, then its parameters."""
    if isinstance(value, Mapping) and "name" in value:
        others = (f"{key}={show_value(v)}" for key, v in value.items() if key != "name")
        return " ".join([str(value["name"]), *others])[:LONGEST]
    return f"{value:.4g}" if isinstance(value, float) else one_line(value)[:LONGEST]


def config_label(config: Mapping[str, Any], between: str = " ") -> str:
    """Return a configuration in few words: "lambda=7 tau=0.1"."""
    names = short_names(config)
    return between.join(f"{names[key]}={show_value(value)}" for key, value in config.items())


def is_number(value: Any) -> bool:
    """Return True for a finite number; a truth value is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def text_of(value: Any) -> str:
    """Return a text to compare values by: 7 and 7.0 have the same."""
    return repr(float(value)) if is_number(value) else repr(value)
