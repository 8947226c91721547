"""The commands of analyses, and their common parts: runs, pages, files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from fedray.command import PATH, Command, plugins_of_runs
from fedray.results.frame import LoadedRun, RunGroup, group_runs, load_runs
from fedray.results.pages.page import Section, markdown
from fedray.results.pages.terminal import print_sections
from fedray.storage.files import write_atomic

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
"""Help texts by analysis; `command` of the module of its name runs it."""


@dataclass(frozen=True)
class AnalysisRequest:
    """The input of an analysis.

    Attributes:
        folders: folders of runs, or folders that contain them.
        out: the folder for the files that the analysis writes.
        options: values of the analysis's options by name.
        files: the files that the analysis has written.
    """

    folders: Sequence[Path]
    out: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    @cached_property
    def runs(self) -> list[LoadedRun]:
        """The loaded runs."""
        return load_runs(self.folders)

    @cached_property
    def grouped(self) -> tuple[list[RunGroup], list[str]]:
        """Groups of the runs, and notes on runs that were left out."""
        return group_runs(self.runs)

    @property
    def groups(self) -> list[RunGroup]:
        """Groups of the runs by configuration."""
        return self.grouped[0]

    def file(self, name: str) -> Path:
        """Return the path of a file to write, and create its folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.files.append(self.out / name)
        return self.files[-1]


Analysis = Callable[[AnalysisRequest], Sequence[Section]]


def analysis(
    *options: click.Option, out: Path | None = None
) -> Callable[[Analysis], click.Command]:
    """Make a function the command of its module, whose name is that of the analysis.

    Args:
        options: options of this analysis.
        out: default folder for its files; None: "report" in the runs' folder.
    """

    def command_of(run: Analysis) -> click.Command:
        name = run.__module__.rpartition(".")[2]

        @click.command(name, cls=Command, help=f"Show {MODULES[name]}.")
        @click.argument("folders", nargs=-1, required=True, type=PATH, metavar="RUN...")
        @click.option(
            "--out",
            "chosen",
            type=PATH,
            metavar="DIR",
            help="Folder for tables and figures; default: RUN/report, or ./report for several "
            "runs.",
        )
        @plugins_of_runs
        def command(folders: Sequence[Path], chosen: Path | None, **values: Any) -> None:
            request = AnalysisRequest(folders, chosen or out or default_folder(folders), values)
            sections = [*run(request)]
            if notes := [f"Warning: {note}." for note in request.grouped[1]]:
                sections.append(Section("", items=notes))
            write_atomic(request.file(f"{name}.md"), markdown(sections))
            print_sections(sections)
            print("wrote " + "\n      ".join(map(str, request.files)))

        command.params[2:2] = options
        return command

    return command_of


def default_folder(folders: Sequence[Path]) -> Path:
    """Return the default folder for reports on runs."""
    return (folders[0] if len(folders) == 1 else Path()) / "report"
