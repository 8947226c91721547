"""What is shipped as a file, or lies beside it: experiments, sweeps and tables by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import fedray

PACKAGE = Path(fedray.__file__).parent
EXPERIMENTS = PACKAGE / "experiments"
"""The shipped experiments."""


def _experiments() -> list[Path]:
    return [EXPERIMENTS]


def _tune() -> list[Path]:
    """Here, in the checkout, in the installed package."""
    return [Path.cwd() / "tune", PACKAGE.parent / "tune", PACKAGE / "sweeps"]


def _tables() -> list[Path]:
    return [folder / "tables" for folder in _tune()]


FOLDERS: Mapping[str, Callable[[], list[Path]]] = MappingProxyType(
    {"experiments": _experiments, "sweeps": _tune, "tables": _tables}
)
"""Where files of each kind are looked for."""


def folders(kind: str) -> list[Path]:
    """Where files of a kind are looked for, a key of `FOLDERS`; the first that has it counts."""
    return FOLDERS[kind]()


def files(kind: str) -> dict[str, Path]:
    """The files of a kind by their names, sorted."""
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in folder.glob("*.yaml"):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def names(kind: str) -> list[str]:
    """The names of a kind, sorted."""
    return list(files(kind))
