"""The command `fedray`, a group of subcommands whose modules are imported when they are called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import click

import fedray
from fedray.base.activity import is_terminal, say_next
from fedray.base.errors import UserError, nearest
from fedray.command import SETTINGS, run

EXPERIMENTS, RESULTS, OWN, PROJECT = "Experiments", "Results", "Your own", "The project"
GROUPS = (EXPERIMENTS, RESULTS, OWN, PROJECT)
"""The sections of the help, in order."""


@dataclass(frozen=True)
class CommandEntry:
    """A subcommand.

    Attributes:
        group: its section of the help.
        summary: its line in the help.
        target: its module, and after a colon its name in the module; default: `command`.
    """

    group: str
    summary: str
    target: str

    @property
    def command(self) -> click.Command:
        """Import and return the command."""
        module, _, name = self.target.partition(":")
        loaded: click.Command = getattr(importlib.import_module(module), name or "command")
        return loaded


COMMANDS: Mapping[str, CommandEntry] = MappingProxyType(
    {
        "run": CommandEntry(EXPERIMENTS, "run one experiment", "fedray.cli.run"),
        "sweep": CommandEntry(
            EXPERIMENTS, "run one experiment in many configurations", "fedray.cli.study:sweep"
        ),
        "table": CommandEntry(
            EXPERIMENTS,
            "compare methods, tuned with the same effort",
            "fedray.cli.study:table",
        ),
        "ls": CommandEntry(
            EXPERIMENTS, "list names: experiments, methods, models, ...", "fedray.cli.names:ls"
        ),
        "show": CommandEntry(
            EXPERIMENTS, "show an experiment's settings, or explain a name", "fedray.cli.show"
        ),
        "cp": CommandEntry(
            EXPERIMENTS, "copy an experiment, sweep or table to edit it", "fedray.cli.names:cp"
        ),
        "cost": CommandEntry(
            EXPERIMENTS, "count what a method keeps, trains and sends", "fedray.cli.cost"
        ),
        "report": CommandEntry(RESULTS, "compare finished runs", "fedray.cli.report"),
        "verify": CommandEntry(
            RESULTS, "repeat finished runs and compare the numbers", "fedray.cli.verify"
        ),
        "diff": CommandEntry(RESULTS, "show how two results differ", "fedray.cli.diff"),
        "analyse": CommandEntry(
            RESULTS, "analyse one aspect of finished runs", "fedray.cli.analyse"
        ),
        "upload": CommandEntry(RESULTS, "upload results that MLflow lacks", "fedray.cli.upload"),
        "predict": CommandEntry(
            RESULTS, "classify images with a run's models", "fedray.cli.predict"
        ),
        "new": CommandEntry(
            OWN, "create a method, model, source or project to edit", "fedray.cli.new"
        ),
        "check": CommandEntry(
            OWN, "check that a method's results are reproducible", "fedray.cli.check"
        ),
        "get": CommandEntry(EXPERIMENTS, "fetch public data sets and weights", "fedray.cli.get"),
        "data": CommandEntry(OWN, "check your own images before a run", "fedray.cli.data"),
        "generate": CommandEntry(
            OWN, "ask a language model for class descriptions", "fedray.language.generate"
        ),
        "doctor": CommandEntry(
            PROJECT, "check this installation and suggest fixes", "fedray.cli.doctor"
        ),
        "papers": CommandEntry(
            PROJECT, "list commands for the papers' tables and figures", "fedray.cli.papers"
        ),
    }
)


def find_command(name: str) -> CommandEntry:
    """Return the subcommand of this name; raise `UserError` if there is none."""
    if name not in COMMANDS:
        raise UserError(f"there is no command '{name}'.{nearest(name, COMMANDS)}")
    return COMMANDS[name]


class _Commands(click.Group):
    """All subcommands; the module of a subcommand is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands in the order of the help."""
        return [name for group in GROUPS for name in COMMANDS if COMMANDS[name].group == group]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand; None if there is none of this name."""
        if cmd_name in ("cost", "data") and not ctx.resilient_parsing and is_terminal():
            say_next("importing PyTorch")  # their modules do
        return COMMANDS[cmd_name].command if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the subcommand and its arguments.

        Raises:
            UserError: if there is no such subcommand.
        """
        if not ctx.resilient_parsing and not args[0].startswith("-"):
            find_command(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands into the help text, by section."""
        for group in GROUPS:
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (name, entry.summary)
                        for name, entry in COMMANDS.items()
                        if entry.group == group
                    ],
                    col_max=12,
                )


EPILOG = """\b
fedray COMMAND --help describes a command.
Documentation, files for clusters, notebooks and benchmarks are in a checkout;
make site writes the documentation as web pages to build/site.
"""


@click.group(cls=_Commands, epilog=EPILOG, context_settings=SETTINGS)
@click.version_option(fedray.__version__, prog_name="fedray", message="%(prog)s %(version)s")
def group() -> None:
    """Run federated-learning experiments, with or without language models, on Ray."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run(group, argv)
