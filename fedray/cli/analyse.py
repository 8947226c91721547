"""`fedray analyse NAME RUN [RUN ...]`: one analysis of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from fedray.analyses.harness import MODULES, Analysis, Request, carry_out, default_folder, find
from fedray.command import PATH, Command, Group, trust
from fedray.records import Select
from fedray.render.terminal import print_sections


class _Analyses(Group):
    """All analyses; none of their modules is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return the command of an analysis."""
        return command_of(find(cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each name and what it shows."""
        with formatter.section("Analyses"):
            formatter.write_dl(list(MODULES.items()))


@click.group(cls=_Analyses, epilog="fedray analyse NAME --help lists the options of one.")
def command() -> None:
    """Look at one aspect of finished runs."""


def command_of(chosen: Analysis) -> click.Command:
    """Return the command of an analysis: what all have, and its own options."""

    @click.command(chosen.name, cls=Command, help=f"Show {MODULES[chosen.name]}.")
    @click.argument("folders", nargs=-1, required=True, type=PATH, metavar="RUN...")
    @click.option(
        "--out", type=PATH, metavar="DIR", help="Default: RUN/report, or ./report for several."
    )
    @click.option(
        "--select",
        type=click.Choice(get_args(Select)),
        help="Choose best rounds on these images; default: as each run's report.select says.",
    )
    @trust
    def analyse(
        folders: Sequence[Path], out: Path | None, select: Select | None, **options: Any
    ) -> None:
        out = out or chosen.out or default_folder(folders)
        sections, files = carry_out(chosen, Request(folders, out, select, options))
        print_sections(sections)
        print("wrote " + "\n      ".join(map(str, files)))

    analyse.params[3:3] = chosen.options
    return analyse
