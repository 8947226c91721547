"""`fedray analyse NAME RUN [RUN ...]`: one analysis of finished runs."""

from __future__ import annotations

import importlib

import click

from fedray.base.errors import UserError, nearest
from fedray.command import SETTINGS
from fedray.results.analyses.harness import MODULES


class _Analyses(click.Group):
    """All analyses; an analysis is imported when its command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the analyses."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return the command of an analysis.

        Raises:
            UserError: if no analysis has the name.
        """
        if cmd_name not in MODULES:
            raise UserError(f"there is no analysis '{cmd_name}'.{nearest(cmd_name, MODULES)}")
        module = importlib.import_module(f"fedray.results.analyses.{cmd_name}")
        command: click.Command = module.command
        return command

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
