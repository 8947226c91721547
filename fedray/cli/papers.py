"""`fedray papers [PAPER] [ITEM]`: list the papers' tables and figures with their commands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from textwrap import wrap

import click
from pydantic import Field

import fedray
from fedray.base.errors import UserError, nearest
from fedray.base.shipped import files
from fedray.cli.dry_run import check_command, plan_of_command
from fedray.command import WIDTH, Command, indented
from fedray.config import Frozen, missing_roots_allowed, read_mapping, validate
from fedray.results.printed_numbers import lines_of, printed_numbers
from fedray.studies.file import SCALES, Kind, PaperItem, read_study
from fedray.studies.printed import PRINTED, can_be_printed

PAPERS = Path(fedray.__file__).parent / "papers"
MEANINGS = {
    "laptop": "minutes on two cores",
    "desktop": "hours of a core",
    "paper": "the paper's data and models, all rows tuned alike",
    "printed": "the paper's own settings, nothing tuned",
}
"""What the commands of a scale do."""


class Item(Frozen):
    """A table, figure or scenario of a paper."""

    item: str
    """The paper's name for it, for example "Table 4"."""
    asks: str
    """The question, with data sets and setting."""
    measure: str
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

    title: str
    """The paper's name for its method."""
    paper: str
    """Authors, venue, arXiv number."""
    printed: str = ""
    """What scale printed takes where paper and official code differ, and how to get the other."""
    offline: str = ""
    """What needs a network, and what is tested instead, of items that do not say it themselves."""
    order: list[str]
    """The items' names, in the paper's order."""
    items: list[Item] = Field(default_factory=list)
    """Items that no study reproduces; in `read_papers` all items, in order."""


def read_papers() -> dict[str, PaperFile]:
    """Return all papers by file name, sorted, each with all items.

    Raises:
        UserError: about the first mistake in a file.
    """
    parts: dict[tuple[str, str], list[Item]] = defaultdict(list)
    kinds: tuple[Kind, Kind] = ("table", "sweep")
    for kind in kinds:
        for name, path in files(f"{kind}s").items():
            tree = read_study(kind, str(path)).tree
            scales = list(tree.get("scales") or ["laptop"])
            scales += [PRINTED] if can_be_printed(scales) and PRINTED not in scales else []
            for entry in tree.get("items") or ():
                item = validate(PaperItem, entry, f"{kind} {name}.items")
                commands = {scale: [*_commands(kind, name, item, scale)] for scale in scales}
                texts = {key: getattr(item, key) for key in ("item", "asks", "measure", "offline")}
                parts[item.paper, item.item].append(Item.model_validate(texts | commands))
    papers = {}
    for path in sorted(PAPERS.glob("*.yaml")):
        file = validate(PaperFile, read_mapping(path), path.stem)
        for own in file.items:
            parts[path.stem, own.item].insert(0, own)
        items = [_merged(name, parts[path.stem, name], file.offline) for name in file.order]
        papers[path.stem] = file.model_copy(update={"items": items})
    return papers


def _commands(kind: Kind, name: str, item: PaperItem, scale: str) -> Iterator[str]:
    """Yield the command that runs a study at one scale, and those that read its results."""
    folder = f"results/{name}_{scale}"
    rows = f" --rows {','.join(item.rows)}" if item.rows else ""
    out = f" --out {folder}" if item.then else ""
    yield f"python -m fedray.{kind} {name} --scale {scale}{rows}{out}"
    for follow_up in item.then:
        word, _, flags = follow_up.partition(" --")
        yield f"fedray {word} {folder}" + (f" --{flags}" if flags else "")


def _merged(name: str, parts: Sequence[Item], offline: str) -> Item:
    """Return an item with the commands of all its parts; the first that asks has the texts."""
    source = next((part for part in parts if part.asks), None)
    if source is None:
        raise UserError(f"fedray/papers: nothing answers {name}")
    commands = {scale: [c for part in parts for c in getattr(part, scale)] for scale in SCALES}
    return source.model_copy(update={**commands, "offline": source.offline or offline})


def numbers_of(*items: Item) -> int:
    """Return how many numbers of a paper the items' printed tables compare, each counted once."""
    commands = {command for item in items for command in item.printed if ".table " in command}
    places = {
        (plan.name, metric, row, column)
        for plan in map(plan_of_command, commands)
        for metric, row, column in product(plan.metrics, plan.rows, plan.shown_columns)
        if plan.paper_of(row, column, metric) is not None
    }
    return len(places)


# --- the command ---------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("paper", required=False)
@click.argument("item", required=False)
def command(paper: str | None, item: str | None) -> None:
    """List the papers' tables and figures with the commands that reproduce them.

    PAPER is fedtsp, fedglcl, dp2fl or fedmgp; ITEM is for example "Table 4", or the beginning of an
    item's name. With ITEM, the numbers that the paper prints there follow.
    """
    for number, (name, entry) in enumerate(select_items(read_papers(), paper, item).items()):
        title = wrap(f"{entry.title} ({name}): {entry.paper}", WIDTH, subsequent_indent="  ")
        print("\n".join([*([""] if number else []), *title]))
        if paper is not None and entry.printed:
            print("\n".join(indented(f"Scale printed: {entry.printed}")))
        for one in entry.items:
            print("\n".join([_summary(one)] if paper is None else _details(one)))
            if item is not None:
                print("\n".join(["", *lines_of(printed_numbers(name, one.item), WIDTH)]).rstrip())
            for sentence, scales in {} if item is None else missing_of(one).items():
                print("\n".join(indented(f"missing at {' and '.join(scales)}: {sentence}")))


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


def select_items(
    papers: Mapping[str, PaperFile], name: str | None, item: str | None
) -> Mapping[str, PaperFile]:
    """Return all papers, one paper, or the items named `item`, or else those that have the name.

    Case and full stops do not count: "fig 4" is "Fig. 4". "Table 9" names "Fig. 2, Table 9".

    Raises:
        UserError: if there is no such paper or item.
    """
    if name is None:
        return papers
    name = name.casefold()
    if name not in papers:
        raise UserError(f"there is no paper '{name}'.{nearest(name, papers)}")
    if item is None:
        return {name: papers[name]}
    wanted, found = _words(item), papers[name].items
    items = [one for one in found if _words(one.item) == wanted]
    items = items or [one for one in found if f" {wanted} " in f" {_words(one.item)} "]
    if not items:
        raise UserError(f"{name} has no item '{item}'.{nearest(item, [o.item for o in found])}")
    return {name: papers[name].model_copy(update={"items": items})}


def _words(name: str) -> str:
    return " ".join(re.findall(r"[\w()]+", name.casefold()))


def _summary(item: Item) -> str:
    line = f"  {item.item:<24} {next((words for _, words in item.commands()), '')}"
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def _details(item: Item) -> list[str]:
    lines = ["", item.item, *indented(item.asks), *indented(f"measured: {item.measure}")]
    lines += indented(f"not here: {item.offline}") if item.offline else []
    for scale in SCALES:
        if commands := getattr(item, scale):
            lines += [f"  {scale}, {MEANINGS[scale]}:", *(f"    {words}" for words in commands)]
    if numbers := numbers_of(item):
        lines += indented(f"{numbers} numbers of the paper stand beside the results")
    return lines
