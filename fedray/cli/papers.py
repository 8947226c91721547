"""The four papers' tables, figures and scenarios, with their commands.

`python -m fedray papers [PAPER] [ITEM]` lists them; `--check` resolves their commands.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from pydantic import Field

import fedray
from fedray.cli.resolving import check_command, words_of
from fedray.command import CommandLine, as_word, run_command
from fedray.config import Frozen, MissingRoot, find_yaml, read_mapping, validate
from fedray.errors import UserError, nearest
from fedray.shipped import folders

PAPERS = Path(fedray.__file__).parent / "papers"
WIDTH = 80
AS_TABLE = "as a table, with methods tuned alike and a verdict on each claim"


class Item(Frozen):
    """A table, figure or scenario of a paper."""

    item: str = Field(min_length=1)
    """As the paper calls it: "Table 4"."""
    asks: str = Field(min_length=1)
    """The question, with data sets and setting."""
    measure: str = Field(min_length=1)
    """Which metric, or which file or picture of the runs, holds the answer."""
    laptop: list[str] = Field(default_factory=list)
    """Commands that take minutes on two cores."""
    paper: list[str] = Field(default_factory=list)
    """Commands with the paper's setting."""
    tables: list[str] = Field(default_factory=list)
    """Tables of tune/tables/ that ask the same: methods tuned alike, claims and verdicts."""
    offline: str = ""
    """What cannot be run without a network, why, and what is tested instead."""

    def commands(self) -> Iterator[tuple[str, str]]:
        """Each scale with each of its commands."""
        for scale in ("laptop", "paper"):
            for command in getattr(self, scale):
                yield scale, command

    def of_tables(self) -> Iterator[tuple[str, str]]:
        """Each scale of its tables with the command that runs it.

        Raises:
            UserError: when there is no such table.
        """
        for name in self.tables:
            path = find_yaml(name, folders("tables"), "table")
            for scale in read_mapping(path).get("scales", ()):
                yield scale, f"python -m fedray.table {name} --scale {scale}"


class Paper(Frozen):
    """A file in fedray/papers/."""

    title: str = Field(min_length=1)
    """What the paper calls its method."""
    paper: str = Field(min_length=1)
    """Authors, venue, arXiv number."""
    items: list[Item] = Field(min_length=1)
    """In the paper's order."""


class Command(NamedTuple):
    """A command of an item.

    Attributes:
        paper: the file's name.
        item: the item's.
        scale: laptop or paper; of a table desktop, too.
        words: the command.
    """

    paper: str
    item: str
    scale: str
    words: str


def read_paper(path: Path) -> Paper:
    """Read and check one paper's file; the commands are checked by `check_command`.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    paper = validate(Paper, read_mapping(path), path.stem)
    names = Counter(item.item for item in paper.items)
    for number, item in enumerate(paper.items):
        where = f"{path.name}: items.{number} ({item.item})"
        if names[item.item] > 1:
            raise UserError(f"{where}: there are {names[item.item]} items of that name")
        if not item.laptop and not item.paper:
            raise UserError(f"{where} has no command; give laptop or paper")
        for scale, command in item.commands():
            words_of(command, f"{where}: {scale}")
        try:
            list(item.of_tables())
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    return paper


def read_papers() -> dict[str, Paper]:
    """Every paper by its file's name, sorted.

    Raises:
        UserError: as `read_paper`.
    """
    return {path.stem: read_paper(path) for path in sorted(PAPERS.glob("*.yaml"))}


def every_command(papers: dict[str, Paper]) -> list[Command]:
    """All commands of runs, sweeps and their like, paper by paper."""
    return _gathered(papers, Item.commands)


def every_table(papers: dict[str, Paper]) -> list[Command]:
    """The commands of all tables, paper by paper."""
    return _gathered(papers, Item.of_tables)


def _gathered(
    papers: dict[str, Paper], of: Callable[[Item], Iterator[tuple[str, str]]]
) -> list[Command]:
    return [
        Command(name, item.item, scale, command)
        for name, paper in papers.items()
        for item in paper.items
        for scale, command in of(item)
    ]


# --- the command ---------------------------------------------------------------------------------


PROG = "fedray papers"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray papers`."""
    cli = CommandLine(prog=prog, description="The papers' tables and figures, with their commands.")
    cli.add_argument("paper", nargs="?", type=as_word, help="fedtsp, fedglcl, dp2fl or fedmgp")
    cli.add_argument("item", nargs="?", type=as_word, help='for example "Table 4"')
    cli.add_argument("--check", action="store_true", help="resolve the commands, run nothing")
    cli.add_argument("--json", action="store_true", help="for programs")
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), papers, argv)


def papers(args: argparse.Namespace) -> int:
    """List what is asked for, or check its commands; returns the exit code."""
    found = chosen(read_papers(), args.paper, args.item)
    if args.check:
        return check([*every_command(found), *every_table(found)])
    if args.json:
        trees = {name: paper.model_dump(mode="json") for name, paper in found.items()}
        print(json.dumps(trees, indent=1, ensure_ascii=False))
        return 0
    whole = args.paper is not None
    for number, (name, paper) in enumerate(found.items()):
        print(f"{'' if number == 0 else chr(10)}{paper.title} ({name}): {paper.paper}")
        for item in paper.items:
            print("\n".join(_described(item) if whole else _in_short(item)))
    return 0


def chosen(papers: dict[str, Paper], name: str | None, item: str | None) -> dict[str, Paper]:
    """The papers, or one of them, or one item of it; case does not matter.

    Raises:
        UserError: when there is no such paper or item.
    """
    if name is None:
        return papers
    known = {each.casefold(): each for each in papers}
    if name.casefold() not in known:
        raise UserError(f"there is no paper '{name}'.{nearest(name, papers)}")
    key = known[name.casefold()]
    if item is None:
        return {key: papers[key]}
    items = [each for each in papers[key].items if each.item.casefold() == item.casefold()]
    if not items:
        names = [each.item for each in papers[key].items]
        raise UserError(f"{key} has no item '{item}'.{nearest(item, names)}")
    return {key: papers[key].model_copy(update={"items": items})}


def check(commands: Sequence[Command]) -> int:
    """Resolve commands, say which do not; returns the exit code."""
    failed, without_data = 0, 0
    for each in commands:
        try:
            check_command(each.words)
        except MissingRoot as error:
            without_data += 1
            print(f"{each.paper}, {each.item} [{each.scale}]: {error}")
        except UserError as error:
            failed += 1
            print(f"{each.paper}, {each.item} [{each.scale}]: {each.words}: {error}")
    print(f"{len(commands)} commands, {failed} wrong, {without_data} whose data is not here")
    return int(failed > 0)


def _in_short(item: Item) -> list[str]:
    first = next((words for _, words in item.commands()), "")
    line = f"  {item.item:<24} {first}"
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."]


def _described(item: Item) -> list[str]:
    lines = ["", item.item]
    offline = f"not without a network: {item.offline}" if item.offline else ""
    for text in (item.asks, f"measured: {item.measure}", offline):
        lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    for scale in ("laptop", "paper"):
        commands = getattr(item, scale)
        if commands:
            lines.append(f"  {scale}:")
            lines += [f"    {command}" for command in commands]
    if item.tables:
        lines.append(f"  {AS_TABLE}:")
        lines += [f"    {command}" for _, command in item.of_tables()]
    return lines
