"""`fedray papers [PAPER] [ITEM]`: list the papers' tables and figures with their commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import click
from pydantic import Field

import fedray
from fedray.base.errors import UserError, nearest
from fedray.base.shipped import files
from fedray.cli.dry_run import check_command, plan_of_command
from fedray.command import WORD, Command
from fedray.config import Frozen, missing_roots_allowed, read_mapping, validate
from fedray.results.printed_numbers import lines_of, printed_numbers
from fedray.studies.file import SCALES, Kind, PaperItem, read_study
from fedray.studies.printed import PRINTED, can_be_printed

PAPERS = Path(fedray.__file__).parent / "papers"
WIDTH = 80
MEANINGS = {
    "laptop": "minutes on two cores",
    "desktop": "hours of a core",
    "paper": "the paper's data and models, all rows tuned alike",
    "printed": "the paper's own settings, nothing tuned",
}
"""What the commands of a scale do."""


class Item(Frozen):
    """A table, figure or scenario of a paper."""

    item: str = Field(min_length=1)
    """The paper's name for it, for example "Table 4"."""
    asks: str = Field(min_length=1)
    """The question, with data sets and setting."""
    measure: str = Field(min_length=1)
    """The metric, file or figure that contains the answer."""
    laptop: list[str] = Field(default_factory=list)
    """Commands that take minutes on two cores."""
    desktop: list[str] = Field(default_factory=list)
    """Commands that take one to seven hours on one core."""
    paper: list[str] = Field(default_factory=list)
    """Commands with the paper's data and models, all rows tuned alike."""
    printed: list[str] = Field(default_factory=list)
    """Commands with the paper's own settings."""
    offline: str = ""
    """What needs a network, why, and what is tested instead."""

    def commands(self) -> Iterator[tuple[str, str]]:
        """Yield each scale with each of its commands."""
        for scale in SCALES:
            for command in getattr(self, scale):
                yield scale, command


class PaperFile(Frozen):
    """A file in fedray/papers/: a paper and the order of its items; studies name the items."""

    title: str = Field(min_length=1)
    """The paper's name for its method."""
    paper: str = Field(min_length=1)
    """Authors, venue, arXiv number."""
    printed: str = ""
    """What scale printed takes where paper and official code differ, and how to get the other."""
    order: list[str] = Field(min_length=1)
    """The items' names, in the paper's order."""
    items: list[Item] = Field(default_factory=list)
    """Items that no study reproduces."""


class Paper(NamedTuple):
    """A paper with all its items.

    Attributes:
        title: its name for its method.
        paper: authors, venue, arXiv number.
        items: its items in order.
        printed: what scale printed takes where paper and official code differ.
    """

    title: str
    paper: str
    items: list[Item]
    printed: str = ""


def read_papers() -> dict[str, Paper]:
    """Return all papers by file name, sorted.

    Raises:
        UserError: about the first mistake in a file.
    """
    answers = _answers()
    papers = {path.stem: _paper(path, answers) for path in sorted(PAPERS.glob("*.yaml"))}
    for paper, item in answers:
        if paper not in papers or item not in [one.item for one in papers[paper].items]:
            raise UserError(f"a study answers {paper}, {item}, which is not in papers/{paper}.yaml")
    return papers


Answer = tuple[str, str, Mapping[str, Any], PaperItem]
"""A study that reproduces an item: its kind, name and scales, and its entry for the item."""


def _answers() -> dict[tuple[str, str], list[Answer]]:
    """Return the studies by paper and item."""
    answers: dict[tuple[str, str], list[Answer]] = {}
    kinds: tuple[Kind, Kind] = ("table", "sweep")
    for kind in kinds:
        for name, path in files(f"{kind}s").items():
            tree = read_study(kind, str(path)).tree
            scales = tree.get("scales", {"laptop": {}})
            for entry in tree.get("items", ()):
                item = validate(PaperItem, entry, f"{kind} {name}.items")
                answers.setdefault((item.paper, item.item), []).append((kind, name, scales, item))
    return answers


def _paper(path: Path, answers: Mapping[tuple[str, str], Sequence[Answer]]) -> Paper:
    file = validate(PaperFile, read_mapping(path), path.stem)
    own_items = {item.item: item for item in file.items}
    items = []
    for name in file.order:
        studies = answers.get((path.stem, name), ())
        if name not in own_items and not studies:
            raise UserError(f"{path.name}: nothing answers {name}")
        items.append(_item(own_items.get(name), name, studies))
    return Paper(file.title, file.paper, items, file.printed)


def _item(own_item: Item | None, name: str, studies: Sequence[Answer]) -> Item:
    """Return an item with the commands of the studies that reproduce it."""
    source = own_item or next((item for *_, item in studies if item.asks), None)
    if source is None:
        raise UserError(f"no study of {name} says what it asks")
    commands = {scale: list(getattr(own_item, scale, ())) for scale in SCALES}
    for kind, study_name, scales, item in studies:
        labels = [*scales, *([PRINTED] if can_be_printed(scales) else [])]
        for scale in dict.fromkeys(labels):
            commands[scale] += _commands(kind, study_name, scale, item)
    return Item(
        item=name,
        asks=source.asks,
        measure=source.measure,
        offline=source.offline,
        **commands,
    )


def numbers_of(item: Item) -> int:
    """Return how many numbers of the paper are compared with an item's printed tables."""
    plans = [plan_of_command(command) for command in item.printed if ".table " in command]
    return sum(
        plan.paper_of(row, column) is not None
        for plan in plans
        for row in plan.rows
        for column in [*plan.columns, *([None] if len(plan.columns) > 1 else [])]
    )


def _commands(kind: str, name: str, scale: str, item: PaperItem) -> Iterator[str]:
    """Yield the command that runs a study at one scale, and those that read its results."""
    folder = f"results/{name}_{scale}"
    rows = f" --rows {','.join(item.rows)}" if item.rows else ""
    out = f" --out {folder}" if item.then else ""
    yield f"python -m fedray.{kind} {name} --scale {scale}{rows}{out}"
    for follow_up in item.then:
        word, _, flags = follow_up.partition(" --")
        yield f"fedray {word} {folder}" + (f" --{flags}" if flags else "")


# --- the command ---------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("paper", required=False, type=WORD)
@click.argument("item", required=False, type=WORD)
def command(paper: str | None, item: str | None) -> None:
    """List the papers' tables and figures with the commands that reproduce them.

    PAPER is fedtsp, fedglcl, dp2fl or fedmgp; ITEM is for example "Table 4", or the beginning of an
    item's name. With ITEM, the numbers that the paper prints there follow.
    """
    for number, (name, entry) in enumerate(select_items(read_papers(), paper, item).items()):
        title = wrap(f"{entry.title} ({name}): {entry.paper}", WIDTH, subsequent_indent="  ")
        print("\n".join([*([""] if number else []), *title]))
        if paper is not None and entry.printed:
            print("\n".join(_wrapped(f"Scale printed: {entry.printed}")))
        for one in entry.items:
            print("\n".join(_summary_lines(one) if paper is None else _detail_lines(one)))
            if item is not None:
                print("\n".join(["", *lines_of(printed_numbers(name, one.item), WIDTH)]).rstrip())
            for sentence, scales in {} if item is None else missing_of(one).items():
                print("\n".join(_wrapped(f"missing at {' and '.join(scales)}: {sentence}")))


def missing_of(item: Item) -> dict[str, list[str]]:
    """Return what an item's commands need and this machine lacks, with the scales that need it."""
    from fedray.runtime.inputs import missing_inputs

    missing: dict[str, list[str]] = {}
    for scale, words in item.commands():
        with missing_roots_allowed():
            runs = check_command(words)
        for sentence in (one for run in runs for one in missing_inputs(run.experiment)):
            if scale not in missing.setdefault(sentence, []):
                missing[sentence].append(scale)
    return missing


def select_items(papers: dict[str, Paper], name: str | None, item: str | None) -> dict[str, Paper]:
    """Return all papers, one paper, or the items whose names are, name or begin with `item`.

    Case and full stops do not count: "fig 4" is "Fig. 4". "Table 9" names "Fig. 2, Table 9".

    Raises:
        UserError: if there is no such paper or item.
    """
    if name is None:
        return papers
    by_name = {key.casefold(): key for key in papers}
    if name.casefold() not in by_name:
        raise UserError(f"there is no paper '{name}'.{nearest(name, papers)}")
    key = by_name[name.casefold()]
    if item is None:
        return {key: papers[key]}
    wanted, found = _folded(item), papers[key].items
    items = [one for one in found if _folded(one.item) == wanted]
    items = items or [one for one in found if wanted in map(_folded, one.item.split(", "))]
    items = items or [
        one for one in found if re.match(rf"{re.escape(wanted)}\b", _folded(one.item))
    ]
    if not items:
        item_names = [one.item for one in papers[key].items]
        raise UserError(f"{key} has no item '{item}'.{nearest(item, item_names)}")
    return {key: papers[key]._replace(items=items)}


def _folded(name: str) -> str:
    return " ".join(name.casefold().replace(".", " ").split())


def _summary_lines(item: Item) -> list[str]:
    first = next((words for _, words in item.commands()), "")
    line = f"  {item.item:<24} {first}"
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."]


def _wrapped(text: str) -> list[str]:
    indent = "  "
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _detail_lines(item: Item) -> list[str]:
    lines = ["", item.item]
    offline = f"not here: {item.offline}" if item.offline else ""
    for text in (item.asks, f"measured: {item.measure}", offline):
        lines += _wrapped(text)
    for scale in SCALES:
        commands = getattr(item, scale)
        if commands:
            lines.append(f"  {scale}, {MEANINGS[scale]}:")
            lines += [f"    {command}" for command in commands]
    if numbers := numbers_of(item):
        lines += _wrapped(f"{numbers} numbers of the paper stand beside the results")
    return lines
