"""The numbers that the four papers print: fedray/papers/NAME.csv, digit by digit."""

import csv
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby, product
from pathlib import Path
from textwrap import wrap
from typing import Literal, NamedTuple

import fedray

FOLDER = Path(fedray.__file__).parent / "papers"
RANK = re.compile(r"(best|second|third)\b.* by value")
"""Notes that repeat what the numbers say."""


PaperNumber = int | float | tuple[float, float] | tuple[float, float | None, Literal["doubtful"]]
"""A mean, or [mean, spread], or with a mark that the paper contradicts it."""


class Printed(NamedTuple):
    """A number of a paper.

    Attributes:
        item: "Table 2".
        page: the page, if the source has pages.
        row: the label of its row.
        column: the labels of its column from the outermost, "CIFAR-10 | α=0.1".
        metric: what it is.
        value: its digits.
        spread: the digits of its standard deviation; "" without one.
        unit: "%", for example; "" for a plain number.
        note: a doubt, or its rank.
    """

    item: str
    page: str
    row: str
    column: str
    metric: str
    value: str
    spread: str
    unit: str
    note: str

    @property
    def text(self) -> str:
        """The value with its spread."""
        return f"{self.value} ± {self.spread}" if self.spread else self.value

    @property
    def with_doubt(self) -> PaperNumber:
        """The value, its spread if the paper prints one, and a mark if the note doubts it."""
        value, spread = float(self.value), float(self.spread) if self.spread else None
        if "doubt:" in self.note:
            return value, spread, "doubtful"
        return value if spread is None else (value, spread)


@cache
def numbers_of_paper(paper: str) -> Sequence[Printed]:
    """Return all numbers of a paper, in its order; none if it has no file."""
    path = FOLDER / f"{paper}.csv"
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return [Printed(*row) for row in csv.reader(file)][1:]


def printed_numbers(paper: str, item: str) -> list[Printed]:
    """Return the numbers of an item, "Table 1" or "Table 1, DomainNet", with its parts (a), (b)."""
    parts = item.split(", ")
    found = [n for n in numbers_of_paper(paper) if n.item.partition(" (")[0] in parts]
    sets = [n for n in found if n.column.partition(" | ")[0] in parts]
    return sets or found


Labels = str | Sequence[str]
"""A label of a row or column, or several."""


def first_number(
    paper: str, items: Sequence[str], rows: Labels, columns: Labels, metric: str | None
) -> Printed | None:
    """Return a paper's first number in the order of items and labels, or None."""
    numbers = {
        (number.item.partition(" (")[0], number.row, number.column): number
        for number in reversed(numbers_of_paper(paper))
        if metric in (None, number.metric)
    }
    labels = [[of] if isinstance(of, str) else of for of in (rows, columns)]
    return next((numbers[place] for place in product(items, *labels) if place in numbers), None)


def lines_of(numbers: Sequence[Printed], width: int = 80) -> Iterator[str]:
    """Yield the table of each item, with as many columns beside each other as fit, and notes."""
    import pandas

    for item, of_item in groupby(numbers, lambda number: number.item):
        own = [*of_item]
        units, metrics = {number.unit for number in own}, {number.metric for number in own}
        yield f"{item}, {len(own)} numbers{f' in {own[0].unit}' if len(units) == 1 else ''}:"
        columns: dict[tuple[str, ...], dict[str, str]] = {}
        for number in own:
            head = (*number.column.split(" | "), *([number.metric] if len(metrics) > 1 else []))
            text = number.text if len(units) == 1 else f"{number.text} {number.unit}"
            columns.setdefault(head, {})[number.row] = text
        levels = max(map(len, columns))
        heads = [(*head, *[""] * (levels - len(head))) for head in columns]
        table = pandas.DataFrame([*columns.values()], pandas.MultiIndex.from_tuples(heads))
        rows = [*dict.fromkeys(number.row for number in own)]
        yield from (
            table.T.reindex(rows)
            .fillna("")
            .to_string(line_width=width, sparsify=False)
            .splitlines()
        )
        notes = {n.note: f"{n.row}, {n.column}" for n in own if n.note and not RANK.match(n.note)}
        for note, place in notes.items():
            yield from wrap(f"- {place}: {note}", width, subsequent_indent="  ")
        yield ""
