"""The words of the command `fedray`: what each does, and the module that does it.

A module is imported once its word is known. It has `main(argv, prog)`, which returns the exit code
and reads its words with the parser that `python -m MODULE` has too, so that no flag stands twice.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fedray.errors import UserError, nearest

EXPERIMENTS, RESULTS, OWN, PROJECT = (
    "Experiments",
    "Results",
    "Your own",
    "The project",
)
GROUPS = (EXPERIMENTS, RESULTS, OWN, PROJECT)
"""The parts of the help, in their order."""


@dataclass(frozen=True)
class Word:
    """One word of the command.

    Attributes:
        group: the part of the help that it stands in.
        does: what it does, in a few words.
        module: what does it.
        names: what its first word may be, for completion: keys of `fedray.shipped.FOLDERS`,
            "listings" (what `ls` lists) or "registered" (what is chosen by name).
    """

    group: str
    does: str
    module: str
    names: tuple[str, ...] = ()

    @property
    def main(self) -> Callable[[Sequence[str], str], int]:
        """What runs it: takes the words behind it and what it was called; returns the exit code."""
        found: Callable[[Sequence[str], str], int] = importlib.import_module(self.module).main
        return found

    @property
    def flags(self) -> list[str]:
        """Return the long flags of its parser."""
        actions = importlib.import_module(self.module).parser()._actions
        return [flag for each in actions for flag in each.option_strings if flag[:2] == "--"]


def word_of(name: str) -> Word:
    """The word of a name.

    Raises:
        UserError: when there is none.
    """
    if name not in WORDS:
        raise UserError(f"there is no command '{name}'.{nearest(name, WORDS)}")
    return WORDS[name]


WORDS: Mapping[str, Word] = MappingProxyType(
    {
        "run": Word(EXPERIMENTS, "run one experiment", "fedray.cli.run", names=("experiments",)),
        "sweep": Word(
            EXPERIMENTS,
            "run one experiment in many configurations",
            "fedray.sweep.command",
            names=("sweeps",),
        ),
        "table": Word(
            EXPERIMENTS,
            "compare methods, each tuned with the same effort",
            "fedray.tables.command",
            names=("tables",),
        ),
        "ls": Word(
            EXPERIMENTS,
            "list what can be chosen by name",
            "fedray.cli.ls",
            names=("listings",),
        ),
        "show": Word(
            EXPERIMENTS,
            "an experiment's values, or what is known of a name",
            "fedray.cli.show",
            names=("experiments", "sweeps", "tables", "registered"),
        ),
        "cp": Word(
            EXPERIMENTS,
            "copy a shipped experiment, sweep or table to edit it",
            "fedray.cli.cp",
            names=("experiments", "sweeps", "tables"),
        ),
        "cost": Word(
            EXPERIMENTS,
            "count what a method keeps, trains and sends",
            "fedray.cli.cost",
            names=("experiments",),
        ),
        "report": Word(RESULTS, "compare finished runs", "fedray.cli.report"),
        "analyse": Word(RESULTS, "one analysis of finished runs", "fedray.cli.analyse"),
        "upload": Word(RESULTS, "send to MLflow what it lacks of runs", "fedray.cli.upload"),
        "convert": Word(
            RESULTS, "bring results of the second edition into today's form", "fedray.cli.convert"
        ),
        "predict": Word(RESULTS, "use a run's models on images", "fedray.cli.predict"),
        "new": Word(OWN, "write a method, model, source or project to edit", "fedray.cli.new"),
        "check": Word(
            OWN, "check that a method keeps the laws", "fedray.cli.check", names=("registered",)
        ),
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
