"""The command `fedray WORD ...`: finds the word, says what there is, completes names.

What follows a word is read by the word's own parser (`fedray.cli.words`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

import fedray
from fedray import shipped
from fedray.cli.words import GROUPS, WORDS, word_of
from fedray.command import USER_ERROR, say_wrong
from fedray.errors import UserError
from fedray.shipped import FOLDERS

NAME = "fedray"
WIDTH = 80


def names(kind: str) -> Sequence[str]:
    """What a word may be.

    Args:
        kind: as of `Word.names`.
    """
    if kind in FOLDERS:
        return shipped.names(kind)
    from fedray.cli.listing import LISTINGS, registered

    if kind == "listings":
        return LISTINGS
    return sorted({entry.name for entries in registered().values() for entry in entries})


class _Behind(click.Command):
    """A word whose own parser reads what follows it.

    Args:
        name: a key of `WORDS`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            name,
            callback=self._run,
            short_help=WORDS[name].does,
            add_help_option=False,  # --help is one of the words that are passed on
        )
        self._word = WORDS[name]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave every word as it is."""
        ctx.args = list(args)
        return ctx.args

    def _run(self) -> int:
        given = click.get_current_context().args
        return self._word.main(given, f"{NAME} {self.name}")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names that the first word may be; everywhere the flags."""
        if incomplete.startswith("-"):
            found = self._word.flags
        else:
            found = [] if ctx.args else [name for kind in self._word.names for name in names(kind)]
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


class _Frame(click.Group):
    """All words; none of their modules is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every word, in the order of the help."""
        return [name for group in GROUPS for name in WORDS if WORDS[name].group == group]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """What runs a word; None of a word that there is not."""
        return _Behind(cmd_name) if cmd_name in WORDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The word and what runs it.

        Raises:
            UserError: when there is no such word.
        """
        if not ctx.resilient_parsing and not args[0].startswith("-"):
            word_of(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The words in their groups."""
        for group in GROUPS:
            with formatter.section(group):
                formatter.write_dl(
                    [(name, word.does) for name, word in WORDS.items() if word.group == group],
                    col_max=12,
                )


@click.group(
    cls=_Frame,
    context_settings={"max_content_width": WIDTH, "help_option_names": ["-h", "--help"]},
    epilog=f"{NAME} WORD --help says more of each.",
)
@click.version_option(fedray.__version__, prog_name=NAME, message="%(prog)s %(version)s")
def frame() -> None:
    """Federated-learning experiments with language in the loop, on Ray."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return int(frame.main(words, prog_name=NAME, standalone_mode=False) or 0)
    except UserError as error:
        say_wrong(error)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
    except click.ClickException as error:
        say_wrong(f"{error.format_message().rstrip('.')}; {NAME} --help lists what there is")
    return USER_ERROR
