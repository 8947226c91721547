"""Which shipped experiments, sweeps and tables a method is in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedray.config import EXPERIMENTS, merged, read_chain, read_mapping
from fedray.core import algorithms
from fedray.shipped import files

_SENTENCES = re.compile(r"(?<=\.) (?=[A-Z])")
"""Between two sentences of one line; "Sec. 4.1" and "Dir(0.5), 100" are none."""


class Uses(NamedTuple):
    """What a method is in: names of files with what each says of itself.

    Attributes:
        experiments: whose method it is.
        sweeps: that vary or compare it.
        tables: of which it is a row.
    """

    experiments: dict[str, str]
    sweeps: dict[str, str]
    tables: dict[str, str]


def uses() -> dict[str, Uses]:
    """Return what every method is in, by its name."""
    found = {name: Uses({}, {}, {}) for name in algorithms.names()}
    methods: dict[str, str] = {}
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        method = _named(merged(read_chain(path.stem)).get("algorithm"))
        methods[path.stem] = method
        found[method].experiments[path.stem] = first_sentence(path)
    for kind in ("sweeps", "tables"):
        for name, path in files(kind).items():
            tree = read_mapping(path)
            for method in sorted(set(_methods(tree, methods)) & found.keys()):
                getattr(found[method], kind)[name] = " ".join(str(tree.get("answers", "")).split())
    return found


def _methods(tree: Any, methods: Mapping[str, str], key: str = "") -> Iterator[str]:
    """Yield names of methods in a sweep or a table, and those of its experiments."""
    if key == "experiment" and isinstance(tree, str):
        yield methods.get(tree, "")
    elif key in ("algorithm", "baselines"):
        yield from _names(tree)
    elif isinstance(tree, Mapping):
        if key == "rows":
            yield from tree
        for inner, value in tree.items():
            yield from _in_joint_axis(str(inner), value)
            yield from _methods(value, methods, inner)


def _in_joint_axis(key: str, axis: Any) -> Iterator[str]:
    """Yield names of methods in an axis of keys that vary together: `algorithm, lr: {grid: [...]}`."""
    keys = [each.strip() for each in key.split(",")]
    if len(keys) < 2 or "algorithm" not in keys or not isinstance(axis, Mapping):
        return
    for values in axis.values():
        for row in values:
            yield from _names(row[keys.index("algorithm")])


def _names(value: Any) -> Iterator[str]:
    """Yield the methods that `algorithm`, or an axis of that name, can be."""
    if isinstance(value, list):
        for each in value:
            yield from _names(each)
    elif isinstance(value, Mapping) and "name" not in value:
        for each in value.values():
            yield from _names(each)
    else:
        yield _named(value)


def _named(value: Any) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else str(value)


def first_sentence(path: Path) -> str:
    """Return the first sentence of the comment at a file's head, before its commands."""
    said: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# ") or line.startswith("#  "):
            break
        said.append(line.removeprefix("# "))
        if line.endswith((".", ":")):
            break
    return _SENTENCES.split(" ".join(said), maxsplit=1)[0]
