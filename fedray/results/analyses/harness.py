"""Registration of analyses, and their common parts: runs, pages, files."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from fedray.errors import UserError, nearest
from fedray.results.frame import Group, LoadedRun, group, load
from fedray.results.pages.page import Section, markdown
from fedray.storage.files import make_folder, write_atomic
from fedray.storage.metric import Select

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "agreement": "agreement of runs on the similarity of classes",
        "cka": "similarity of local and global models, by layer",
        "groups": "FedMGP's prompt groups within and between clients",
        "local_models": "models before and after local training, by class",
        "phases": "metrics before and after data changes or clients join",
        "retest": "finished models tested again under other settings",
        "target": "rounds, seconds and megabytes to a target",
    }
)
"""Help texts by analysis; each analysis has a module of its name."""


@dataclass(frozen=True)
class Request:
    """The input of an analysis.

    Attributes:
        folders: folders of runs, or folders that contain them.
        out: the folder for the files that the analysis writes.
        select: images on which best rounds are chosen; None: each run's own setting.
        options: values of the analysis's options by name.
    """

    folders: Sequence[Path]
    out: Path
    select: Select | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def runs(self) -> list[LoadedRun]:
        """The loaded runs."""
        return load(self.folders, self.select)

    @cached_property
    def grouped(self) -> tuple[list[Group], list[str]]:
        """Groups of the runs, and notes on runs that were left out."""
        return group(self.runs)

    def file(self, name: str) -> Path:
        """Return the path of a file to write, and create its folder."""
        make_folder(self.out)
        return self.out / name

    @property
    def groups(self) -> list[Group]:
        """Groups of the runs by configuration."""
        return self.grouped[0]


@dataclass(frozen=True)
class Findings:
    """The results of an analysis.

    Attributes:
        sections: sections of its page.
        files: files that the analysis wrote, other than the page.
    """

    sections: Sequence[Section]
    files: Sequence[Path] = ()


@dataclass(frozen=True)
class Analysis:
    """An analysis of finished runs.

    Attributes:
        name: the argument of `fedray analyse`.
        run: the function.
        options: options of its command.
        out: the folder for its files; None: "report" in the runs' folder.
    """

    name: str
    run: Callable[[Request], Findings]
    options: Sequence[click.Option]
    out: Path | None


def count_option(
    flag: str, what: str, least: int = 1, default: int | None = None, metavar: str = "N"
) -> click.Option:
    """Return a command line option for a whole number of at least `least`."""
    return click.Option(
        [flag],
        type=click.IntRange(least, 10**6),
        default=default,
        metavar=metavar,
        show_default=default is not None,
        help=what,
    )


_ANALYSES: dict[str, Analysis] = {}


def analysis(
    name: str, *options: click.Option, out: Path | None = None
) -> Callable[[Callable[[Request], Findings]], Callable[[Request], Findings]]:
    """Register a function as an analysis; the arguments are attributes of `Analysis`."""

    def register(run: Callable[[Request], Findings]) -> Callable[[Request], Findings]:
        _ANALYSES[name] = Analysis(name, run, options, out)
        return run

    return register


def find(name: str) -> Analysis:
    """Return an analysis by its name.

    Raises:
        UserError: if no analysis has the name.
    """
    if name not in MODULES:
        raise UserError(
            f"there is no analysis '{name}', only {', '.join(MODULES)}.{nearest(name, MODULES)}"
        )
    importlib.import_module(f"fedray.results.analyses.{name}")
    return _ANALYSES[name]


def default_folder(folders: Sequence[Path]) -> Path:
    """Return the default folder for reports on runs."""
    return (folders[0] if len(folders) == 1 else Path()) / "report"


def carry_out(chosen: Analysis, request: Request) -> tuple[list[Section], list[Path]]:
    """Run an analysis and write its page; return the page's sections and all files."""
    findings = chosen.run(request)
    notes = [f"Warning: {note}." for note in request.grouped[1]]
    sections = [*findings.sections, *([Section("", items=notes)] if notes else [])]
    page = request.file(f"{chosen.name}.md")
    write_atomic(page, markdown(sections))
    return sections, [page, *findings.files]
