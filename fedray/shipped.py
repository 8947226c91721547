"""Shipped YAML files by name: experiments, sweeps and tables."""

from __future__ import annotations

from pathlib import Path

import fedray

PACKAGE = Path(fedray.__file__).parent
EXPERIMENTS = PACKAGE / "experiments"
"""The shipped experiments."""
FOLDERS = ("experiments", "sweeps", "tables")
"""The kinds of files."""


def folders(kind: str) -> list[Path]:
    """Return the folders of a kind, one of `FOLDERS`, in the order in which they are searched.

    Sweeps and tables: below the current folder, in the checkout, in the installed package.
    """
    if kind == "experiments":
        return [EXPERIMENTS]
    tune = [Path.cwd() / "tune", PACKAGE.parent / "tune", PACKAGE / "sweeps"]
    return tune if kind == "sweeps" else [folder / "tables" for folder in tune]


def files(kind: str) -> dict[str, Path]:
    """Return the files of a kind by name, sorted."""
    paths = [path for folder in reversed(folders(kind)) for path in folder.glob("*.yaml")]
    return dict(sorted({path.stem: path for path in paths}.items()))


def names(kind: str) -> list[str]:
    """Return the names of a kind, sorted."""
    return list(files(kind))
