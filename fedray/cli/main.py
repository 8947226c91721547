"""The command `fedray`, a group of subcommands whose modules are imported when they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import click

import fedray
from fedray.base.activity import is_terminal, say_next
from fedray.command import SETTINGS, LazyGroup, run

COMMANDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Experiments": {
            "run": "run one experiment",
            "sweep": "run one experiment in many configurations",
            "table": "compare methods, tuned with the same effort",
            "ls": "list names: experiments, methods, models, ...",
            "show": "show an experiment's settings, or explain a name",
            "cost": "count what a method keeps, trains and sends",
            "get": "fetch public data sets and weights",
        },
        "Results": {
            "report": "compare finished runs",
            "verify": "repeat finished runs and compare the numbers",
            "diff": "show how two runs differ",
            "analyse": "analyse one aspect of finished runs",
            "upload": "upload results that MLflow lacks",
            "predict": "classify images with a run's models",
        },
        "Your own": {
            "new": "create a method, model, source or project to edit",
            "check": "check that a method's results are reproducible",
            "data": "check your own images before a run",
            "generate": "ask a language model for class descriptions",
        },
        "The project": {
            "doctor": "check this installation and suggest fixes",
            "papers": "list commands for the papers' tables and figures",
        },
    }
)
"""The subcommands with their lines in the help, by section, in order."""
PLACES = {
    "sweep": "fedray.cli.study:sweep",
    "table": "fedray.cli.study:table",
    "ls": "fedray.cli.names:ls",
    "show": "fedray.cli.names:show",
    "generate": "fedray.language.generate:command",
}
"""Where subcommands are that are not `command` in a module of their name."""


class Commands(LazyGroup):
    """All subcommands."""

    sections = COMMANDS

    def place(self, name: str) -> str:
        """Return "module:attribute" of a subcommand."""
        if name in ("cost", "data") and is_terminal():
            say_next("importing PyTorch")  # their modules do
        return PLACES.get(name, f"fedray.cli.{name}:command")


EPILOG = """\b
fedray COMMAND --help describes a command.
Documentation, files for clusters, notebooks and benchmarks are in a checkout;
make site writes the documentation as web pages to build/site.
"""


@click.group(cls=Commands, epilog=EPILOG, context_settings=SETTINGS)
@click.version_option(fedray.__version__, prog_name="fedray", message="%(prog)s %(version)s")
def group() -> None:
    """Run federated-learning experiments, with or without language models, on Ray."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run(group, argv)
