"""Find the shipped experiments, sweeps and tables that use a method."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedray.config import EXPERIMENTS, merged, read_chain
from fedray.core import algorithms
from fedray.base.shipped import files
from fedray.studies.file import read_study

_SENTENCES = re.compile(r"(?<=\.) (?=[A-Z])")
"""The blank between two sentences; "Sec. 4.1" and "Dir(0.5), 100" do not match."""


class Uses(NamedTuple):
    """The files that use a method: descriptions by name.

    Attributes:
        experiments: the experiments with this method.
        sweeps: the sweeps that vary or compare the method.
        tables: the tables with a row of the method.
    """

    experiments: dict[str, str]
    sweeps: dict[str, str]
    tables: dict[str, str]


def uses() -> dict[str, Uses]:
    """Return the files that use each method, by the method's name."""
    by_method = {name: Uses({}, {}, {}) for name in algorithms.names()}
    methods: dict[str, str] = {}
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        method = _named(merged(read_chain(path.stem)).get("algorithm"))
        methods[path.stem] = method
        by_method[method].experiments[path.stem] = first_sentence(path)
    for kind in ("sweeps", "tables"):
        for name, path in files(kind).items():
            tree = read_study("sweep" if kind == "sweeps" else "table", str(path)).tree
            for method in sorted(set(_methods(tree, methods)) & by_method.keys()):
                getattr(by_method[method], kind)[name] = " ".join(
                    str(tree.get("answers", "")).split()
                )
    return by_method


def _methods(tree: Any, methods: Mapping[str, str], key: str = "") -> Iterator[str]:
    """Yield the names of the methods in a sweep or a table, and of those of its experiments."""
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
    """Yield the names of methods in a joint axis, such as `algorithm, lr: {grid: [...]}`."""
    keys = [part.strip() for part in key.split(",")]
    if len(keys) < 2 or "algorithm" not in keys or not isinstance(axis, Mapping):
        return
    for values in axis.values():
        for row in values:
            yield from _names(row[keys.index("algorithm")])


def _names(value: Any) -> Iterator[str]:
    """Yield the names of methods in a value of `algorithm`, or in an axis of that key."""
    if isinstance(value, list):
        for item in value:
            yield from _names(item)
    elif isinstance(value, Mapping) and "name" not in value:
        for item in value.values():
            yield from _names(item)
    else:
        yield _named(value)


def _named(value: Any) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else str(value)


def first_sentence(path: Path) -> str:
    """Return the first sentence of the comment at the head of a file."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# ") or line.startswith("#  "):
            break
        lines.append(line.removeprefix("# "))
        if line.endswith((".", ":")):
            break
    return _SENTENCES.split(" ".join(lines), maxsplit=1)[0]
