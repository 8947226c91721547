"""`fedray analyse NAME RUN [RUN ...]`: one analysis of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from fedray.command import PATH, SETTINGS, Command, trust_flag
from fedray.results.analyses.harness import (
    MODULES,
    Analysis,
    Request,
    carry_out,
    default_folder,
    find,
)
from fedray.results.pages.terminal import print_sections
from fedray.storage.metric import Select


class _Analyses(click.Group):
    """All analyses; an analysis is imported when its command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the analyses."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return the command of an analysis."""
        return command_of(find(cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the analyses and their descriptions into the help text."""
        with formatter.section("Analyses"):
            formatter.write_dl(list(MODULES.items()))


@click.group(
    cls=_Analyses,
    epilog="fedray analyse NAME --help lists the options of an analysis.",
    context_settings=SETTINGS,
)
def command() -> None:
    """Analyse one aspect of finished runs."""


def command_of(analysis: Analysis) -> click.Command:
    """Return the command of an analysis, with the common options and those of the analysis."""

    @click.command(analysis.name, cls=Command, help=f"Show {MODULES[analysis.name]}.")
    @click.argument("folders", nargs=-1, required=True, type=PATH, metavar="RUN...")
    @click.option(
        "--out",
        type=PATH,
        metavar="DIR",
        help="Folder for tables and figures; default: RUN/report, or ./report for several runs.",
    )
    @click.option(
        "--select",
        type=click.Choice(get_args(Select)),
        help="Images that select the best round; default: each run's report.select.",
    )
    @trust_flag
    def analyse(
        folders: Sequence[Path], out: Path | None, select: Select | None, **options: Any
    ) -> None:
        out = out or analysis.out or default_folder(folders)
        sections, files = carry_out(analysis, Request(folders, out, select, options))
        print_sections(sections)
        print("wrote " + "\n      ".join(map(str, files)))

    analyse.params[3:3] = analysis.options
    return analyse
