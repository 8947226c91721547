"""Shipped YAML files by name: experiments, sweeps and tables."""

from __future__ import annotations

from pathlib import Path

import fedray

PACKAGE = Path(fedray.__file__).parent
EXPERIMENTS = PACKAGE / "experiments"
"""The folder of the shipped experiments."""
FOLDERS = ("experiments", "sweeps", "tables")
"""The kinds of shipped files."""


def folders(kind: str) -> list[Path]:
    """Return the folders of a kind, one of `FOLDERS`, in search order.

    Sweeps and tables are searched in the working directory, the checkout and the installed package.
    """
    if kind == "experiments":
        return [EXPERIMENTS]
    tune = [Path.cwd() / "tune", PACKAGE.parent / "tune", PACKAGE / "sweeps"]
    return tune if kind == "sweeps" else [folder / "tables" for folder in tune]


def files(kind: str) -> dict[str, Path]:
    """Return the paths of a kind's files by name, sorted by name."""
    paths = [path for folder in reversed(folders(kind)) for path in folder.glob("*.yaml")]
    return dict(sorted({path.stem: path for path in paths}.items()))


def names(kind: str) -> list[str]:
    """Return the names of a kind's files, sorted."""
    return list(files(kind))
