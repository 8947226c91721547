"""The four papers' tables, figures and scenarios, with their commands.

`fedray papers [PAPER] [ITEM]` lists them; `--check` resolves their commands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

import click
from pydantic import Field

import fedray
from fedray.cli.dry_run import check_command
from fedray.command import WORD, Command, json_flag
from fedray.config import Frozen, MissingRoot, read_mapping, validate
from fedray.errors import UserError, nearest
from fedray.shipped import files
from fedray.studies.file import Item as StudyItem
from fedray.studies.file import Study, replace_old_keys

PAPERS = Path(fedray.__file__).parent / "papers"
WIDTH = 80
SCALES = ("laptop", "desktop", "paper")


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
    desktop: list[str] = Field(default_factory=list)
    """Commands of one to seven hours of a core."""
    paper: list[str] = Field(default_factory=list)
    """Commands with the paper's setting."""
    offline: str = ""
    """What cannot be run without a network, why, and what is tested instead."""

    def commands(self) -> Iterator[tuple[str, str]]:
        """Yield each scale with each of its commands."""
        for scale in SCALES:
            for command in getattr(self, scale):
                yield scale, command


class PaperFile(Frozen):
    """A file in fedray/papers/: the items in the paper's order; studies say what answers them."""

    title: str = Field(min_length=1)
    """What the paper calls its method."""
    paper: str = Field(min_length=1)
    """Authors, venue, arXiv number."""
    order: list[str] = Field(min_length=1)
    """The items' names, in the paper's order."""
    items: list[Item] = Field(default_factory=list)
    """What no study answers."""


class Paper(NamedTuple):
    """A paper with all its items.

    Attributes:
        title: what it calls its method.
        paper: authors, venue, arXiv number.
        items: in its order.
    """

    title: str
    paper: str
    items: list[Item]


class PaperCommand(NamedTuple):
    """A command of an item.

    Attributes:
        paper: the file's name.
        item: the item's.
        scale: laptop, desktop or paper.
        words: the command.
    """

    paper: str
    item: str
    scale: str
    words: str


def read_papers() -> dict[str, Paper]:
    """Return every paper by its file's name, sorted.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    answers = _answers()
    papers = {path.stem: _paper(path, answers) for path in sorted(PAPERS.glob("*.yaml"))}
    for paper, item in answers:
        if paper not in papers or item not in [each.item for each in papers[paper].items]:
            raise UserError(f"a study answers {paper}, {item}, which is not in papers/{paper}.yaml")
    return papers


Answer = tuple[str, str, Study, StudyItem]
"""The kind of a study, its name, its file, and what it says of the item."""


def _answers() -> dict[tuple[str, str], list[Answer]]:
    """Return the studies by the paper and the item that they answer."""
    found: dict[tuple[str, str], list[Answer]] = {}
    for kind in ("table", "sweep"):
        for name, path in files(f"{kind}s").items():
            study = validate(Study, replace_old_keys(read_mapping(path)), f"{kind} {name}")
            for item in study.items:
                found.setdefault((item.paper, item.item), []).append((kind, name, study, item))
    return found


def _paper(path: Path, answers: Mapping[tuple[str, str], Sequence[Answer]]) -> Paper:
    file = validate(PaperFile, read_mapping(path), path.stem)
    own = {item.item: item for item in file.items}
    items = []
    for name in file.order:
        studies = answers.get((path.stem, name), ())
        if name not in own and not studies:
            raise UserError(f"{path.name}: nothing answers {name}")
        items.append(_item(own.get(name), name, studies))
    return Paper(file.title, file.paper, items)


def _item(own: Item | None, name: str, studies: Sequence[Answer]) -> Item:
    """Return an item with the commands of the studies that answer it."""
    said = own or next((item for *_, item in studies if item.asks), None)
    if said is None:
        raise UserError(f"no study of {name} says what it asks")
    commands = {scale: list(getattr(own, scale, ())) for scale in SCALES}
    for kind, study_name, study, item in studies:
        for scale in study.scales:
            commands[scale] += _commands(kind, study_name, scale, item.then)
    return Item(item=name, asks=said.asks, measure=said.measure, offline=said.offline, **commands)


def _commands(kind: str, name: str, scale: str, then: Sequence[str]) -> Iterator[str]:
    """Yield what runs a study at one scale, and what reads its folder then."""
    folder = f"results/{name}_{scale}"
    out = f" --out {folder}" if then else ""
    yield f"python -m fedray.{kind} {name} --scale {scale}{out}"
    for each in then:
        word, _, flags = each.partition(" --")
        yield f"fedray {word} {folder}" + (f" --{flags}" if flags else "")


def every_command(papers: Mapping[str, Paper]) -> list[PaperCommand]:
    """Return all commands, paper by paper."""
    return [
        PaperCommand(name, item.item, scale, command)
        for name, paper in papers.items()
        for item in paper.items
        for scale, command in item.commands()
    ]


# --- the command ---------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("paper", required=False, type=WORD)
@click.argument("item", required=False, type=WORD)
@click.option("--check", "checks", is_flag=True, help="Resolve the commands, run nothing.")
@json_flag
def command(paper: str | None, item: str | None, checks: bool, as_json: bool) -> int:
    """Show the papers' tables and figures, with their commands.

    PAPER is fedtsp, fedglcl, dp2fl or fedmgp; ITEM is for example "Table 4".
    """
    found = chosen(read_papers(), paper, item)
    if checks:
        return check(every_command(found))
    if as_json:
        trees = {
            name: {**each._asdict(), "items": [one.model_dump(mode="json") for one in each.items]}
            for name, each in found.items()
        }
        print(json.dumps(trees, indent=1, ensure_ascii=False))
        return 0
    for number, (name, each) in enumerate(found.items()):
        print(f"{'' if number == 0 else chr(10)}{each.title} ({name}): {each.paper}")
        for one in each.items:
            print("\n".join(_in_short(one) if paper is None else _described(one)))
    return 0


def chosen(papers: dict[str, Paper], name: str | None, item: str | None) -> dict[str, Paper]:
    """Return the papers, or one of them, or one item of it; case does not matter.

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
    return {key: papers[key]._replace(items=items)}


def check(commands: Sequence[PaperCommand]) -> int:
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
    for scale in SCALES:
        commands = getattr(item, scale)
        if commands:
            lines.append(f"  {scale}:")
            lines += [f"    {command}" for command in commands]
    return lines
