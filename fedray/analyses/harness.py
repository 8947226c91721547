"""Registration of analyses, and what all of them share: runs, pages, files."""

from __future__ import annotations

import importlib
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedray.compare.frame import Group, LoadedRun, group, load
from fedray.errors import UserError, nearest
from fedray.files import make_folder, write_atomic
from fedray.records import Select
from fedray.render.page import Section, markdown

MODULES = ("agreement", "cka", "groups", "local_models", "phases", "retest", "target")
"""The modules, each with the analysis of its name."""


@dataclass(frozen=True)
class Request:
    """What an analysis is asked for.

    Attributes:
        folders: of runs, or of folders of runs.
        out: the folder of what the analysis writes.
        select: on which images best rounds are chosen; None: as each run says.
        options: the analysis's own, by name.
    """

    folders: Sequence[Path]
    out: Path
    select: Select | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def runs(self) -> list[LoadedRun]:
        """The runs."""
        return load(self.folders, self.select)

    @cached_property
    def grouped(self) -> tuple[list[Group], list[str]]:
        """The runs' groups, and notes on runs that were left out."""
        return group(self.runs)

    def file(self, name: str) -> Path:
        """Return the path of a file to write; makes the folder."""
        make_folder(self.out)
        return self.out / name

    @property
    def groups(self) -> list[Group]:
        """The runs by configuration."""
        return self.grouped[0]


@dataclass(frozen=True)
class Findings:
    """What an analysis found.

    Attributes:
        sections: of its page.
        files: that it wrote besides the page.
    """

    sections: Sequence[Section]
    files: Sequence[Path] = ()


@dataclass(frozen=True)
class Analysis:
    """An analysis of finished runs.

    Attributes:
        name: what `fedray analyse` is given.
        run: the function.
        options: its command-line options as keyword arguments of argparse, by flag.
        out: the folder for its files; None: "report" below the runs' folder.
    """

    name: str
    run: Callable[[Request], Findings]
    options: Mapping[str, Mapping[str, Any]]
    out: Path | None

    @property
    def summary(self) -> str:
        """The first line of the module's docstring."""
        return (importlib.import_module(self.run.__module__).__doc__ or "").partition("\n")[0]


_ANALYSES: dict[str, Analysis] = {}


def analysis(
    name: str,
    options: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    out: Path | None = None,
) -> Callable[[Callable[[Request], Findings]], Callable[[Request], Findings]]:
    """Register a function as an analysis; arguments as the attributes of `Analysis`."""

    def register(run: Callable[[Request], Findings]) -> Callable[[Request], Findings]:
        _ANALYSES[name] = Analysis(name, run, options, out)
        return run

    return register


def find(name: str) -> Analysis:
    """Return an analysis by its name.

    Raises:
        UserError: if there is none.
    """
    if name not in MODULES:
        raise UserError(
            f"there is no analysis '{name}', only {', '.join(MODULES)}.{nearest(name, MODULES)}"
        )
    importlib.import_module(f"fedray.analyses.{name}")
    return _ANALYSES[name]


def default_folder(folders: Sequence[Path]) -> Path:
    """Return where reports on runs go, unless a place is named."""
    return (folders[0] if len(folders) == 1 else Path()) / "report"


def carry_out(chosen: Analysis, request: Request) -> tuple[list[Section], list[Path]]:
    """Run an analysis and write its page; returns the page and all files."""
    findings = chosen.run(request)
    notes = [f"Warning: {note}." for note in request.grouped[1]]
    sections = [*findings.sections, *([Section("", items=notes)] if notes else [])]
    page = request.file(f"{chosen.name}.md")
    write_atomic(page, markdown(sections))
    return sections, [page, *findings.files]


def as_number(text: str) -> float:
    """Read a finite number on the command line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentTypeError(f"'{text}' is no number, expected for example 0.7")
    return value
