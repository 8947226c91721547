"""The command `fedray WORD ...`: one group; the module of a word is imported when it is typed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import click

import fedray
from fedray.command import Group, run
from fedray.errors import UserError, nearest

EXPERIMENTS, RESULTS, OWN, PROJECT = "Experiments", "Results", "Your own", "The project"
GROUPS = (EXPERIMENTS, RESULTS, OWN, PROJECT)
"""The parts of the help, in their order."""


@dataclass(frozen=True)
class Word:
    """One word of the command.

    Attributes:
        group: its part of the help.
        does: what it does, in a few words.
        place: the module of its command, and its name there.
    """

    group: str
    does: str
    place: str

    @property
    def command(self) -> click.Command:
        """The command, imported now."""
        module, _, name = self.place.partition(":")
        found: click.Command = getattr(importlib.import_module(module), name or "command")
        return found


WORDS: Mapping[str, Word] = MappingProxyType(
    {
        "run": Word(EXPERIMENTS, "run one experiment", "fedray.cli.run"),
        "sweep": Word(
            EXPERIMENTS, "run one experiment in many configurations", "fedray.cli.study:sweep"
        ),
        "table": Word(
            EXPERIMENTS,
            "compare methods, tuned with the same effort",
            "fedray.cli.study:table",
        ),
        "decide": Word(
            EXPERIMENTS,
            "add seeds to a table until its claims are decided",
            "fedray.cli.study:decide",
        ),
        "ls": Word(EXPERIMENTS, "list what can be chosen by name", "fedray.cli.names:ls"),
        "show": Word(
            EXPERIMENTS, "an experiment's values, or what is known of a name", "fedray.cli.show"
        ),
        "cp": Word(
            EXPERIMENTS, "copy an experiment, sweep or table to edit it", "fedray.cli.names:cp"
        ),
        "cost": Word(EXPERIMENTS, "count what a method keeps, trains and sends", "fedray.cli.cost"),
        "report": Word(RESULTS, "compare finished runs", "fedray.cli.report"),
        "verify": Word(RESULTS, "run finished runs again and compare", "fedray.cli.verify"),
        "diff": Word(RESULTS, "show how two runs differ", "fedray.cli.diff"),
        "analyse": Word(RESULTS, "look at one aspect of finished runs", "fedray.cli.analyse"),
        "upload": Word(RESULTS, "send to MLflow what it lacks of runs", "fedray.cli.upload"),
        "convert": Word(
            RESULTS, "bring results of the second edition into today's form", "fedray.cli.convert"
        ),
        "predict": Word(RESULTS, "use a run's models on images", "fedray.cli.predict"),
        "new": Word(OWN, "write a method, model, source or project to edit", "fedray.cli.new"),
        "check": Word(OWN, "check that a method keeps the laws", "fedray.cli.check"),
        "data": Word(OWN, "look at images of your own, before a run does", "fedray.cli.data"),
        "generate": Word(
            OWN, "ask a language model for class descriptions", "fedray.language.generate"
        ),
        "doctor": Word(
            PROJECT, "what works here, and what to do about what does not", "fedray.cli.doctor"
        ),
        "papers": Word(PROJECT, "the papers' tables and figures as commands", "fedray.cli.papers"),
    }
)


def word_of(name: str) -> Word:
    """Return the word of a name.

    Raises:
        UserError: if there is none.
    """
    if name not in WORDS:
        raise UserError(f"there is no command '{name}'.{nearest(name, WORDS)}")
    return WORDS[name]


class _Words(Group):
    """All words; none of their modules is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every word, in the order of the help."""
        return [name for group in GROUPS for name in WORDS if WORDS[name].group == group]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return what runs a word; None if there is no such word."""
        return WORDS[cmd_name].command if cmd_name in WORDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the word and what runs it.

        Raises:
            UserError: if there is no such word.
        """
        if not ctx.resilient_parsing and not args[0].startswith("-"):
            word_of(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the words in their groups."""
        for group in GROUPS:
            with formatter.section(group):
                formatter.write_dl(
                    [(name, word.does) for name, word in WORDS.items() if word.group == group],
                    col_max=12,
                )


@click.group(cls=_Words, epilog="fedray WORD --help says more of each.")
@click.version_option(fedray.__version__, prog_name="fedray", message="%(prog)s %(version)s")
def group() -> None:
    """Federated-learning experiments with language in the loop, on Ray."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run(group, argv)
