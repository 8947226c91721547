"""The generated parts of docs/results.md: verdicts, controls, commands.

docs/results/NAME/ holds a published table, which `--take FOLDER` copied from the folder of its
invocation, and a page with its claims.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from _build.published import FOLDER
from _build.templates import render
from fedray.base.markdown import markdown_table
from fedray.results.pages.cells import difference_cell
from fedray.results.record import DATA, DIVERGED, FailedRun, TableRecord
from fedray.storage.files import write_atomic
from fedray.storage.files import sealed

RESULTS = "docs/results.md"
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
TAKEN = ("table.md", "table.tex")
FIGURE = "figure.png"
TABLES = "tune/tables"
OF_PAPERS = ("dp2fl_", "fedglcl_", "fedmgp_", "fedtsp_")
"""Prefixes of the names of the four papers' tables."""
ABSOLUTE = re.compile(r"(?<![\w.:/~])/(?:[^\s/'\"`|()]+/)+(?=[^\s/])")
"""The folders of a path on one machine, up to the file's name."""
DECIDED = ("holds", "refuted")
OPEN = ("undecided", "not asked")


def take(folder: Path, root: Path) -> Path:
    """Copy the page of a table's invocation into the checkout; return the new folder.

    Folders of the machine that ran the table are removed from the reasons of failed runs.

    Raises:
        UserError: if the folder holds no table, or the table is damaged or edited.
    """
    record = TableRecord.read(folder / DATA)
    to = root / FOLDER / record.plan.name
    to.mkdir(parents=True, exist_ok=True)
    failed = [run.reason for run in record.runs.values() if isinstance(run, FailedRun)]
    reasons = {reason.removeprefix(f"{DIVERGED}: ") for reason in failed}  # as notes have them

    def short(text: str) -> str:
        for reason in sorted(reasons, key=len, reverse=True):
            for written in (reason, json.dumps(reason)[1:-1]):  # as on a page, as in JSON
                text = text.replace(written, ABSOLUTE.sub("", written))
        return text

    for name in TAKEN:
        if (folder / name).is_file():
            write_atomic(to / name, short((folder / name).read_text(encoding="utf-8")))
    if (folder / FIGURE).is_file():
        shutil.copyfile(folder / FIGURE, to / FIGURE)
    shortened = sealed(json.loads(short(json.dumps(record.tree()))))
    write_atomic(to / DATA, json.dumps(shortened, separators=(",", ":")) + "\n")
    return to


def with_part(text: str, part: str, name: str = "claims") -> str:
    """Insert a generated part into a page between the marks of this name, if it has them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text:
        return text
    before, after = text.split(begin)[0], text.split(end)[1]
    return f"{before}{begin}\n\n{part.strip()}\n\n{end}{after}"


def not_run(root: Path) -> int:
    """Return the number of shipped tables of the papers that are not published."""
    published = {path.parent.name for path in (root / FOLDER).glob(f"*/{DATA}")}
    shipped = {path.stem for path in (root / TABLES).glob("*.yaml")}
    return sum(name.startswith(OF_PAPERS) for name in shipped - published)


def summary(tables: Sequence[TableRecord], others: int) -> str:
    """Return the numbers of decided claims as text, in all and by table.

    Args:
        tables: the published tables.
        others: number of further tables that were not run.
    """
    verdicts = _verdicts(tables)
    header = ["table", "question", "holds", "refuted", "undecided"]
    return render(
        "summary",
        asked=verdicts.total(),
        decided=sum(verdicts[verdict] for verdict in DECIDED),
        holds=verdicts["holds"],
        refuted=verdicts["refuted"],
        counts=markdown_table(header, map(_counts, tables)),
        others=others,
        tables=tables,
    )


def details(tables: Sequence[TableRecord]) -> str:
    """Return the controls of tables and their commands as text."""
    controls = [
        [_link(table), f"{name} for {row.of}", _difference(table, name), table.reading(name)]
        for table in tables
        for name, row in table.plan.controls.items()
    ]
    header = ["table", "control", "method minus control", "reading"]
    return render(
        "details",
        controls=controls and markdown_table(header, controls),
        tables=[{"link": _link(table), "record": table} for table in tables],
    )


def _verdicts(tables: Sequence[TableRecord]) -> Counter[str]:
    return Counter(claim.verdict for table in tables for claim in table.claims)


def _link(table: TableRecord) -> str:
    return f"[{table.plan.name}](results/{table.plan.name}/table.md)"


def _counts(table: TableRecord) -> list[str]:
    verdicts = _verdicts([table])
    open_ones = sum(verdicts[one] for one in OPEN)
    counts = [*(verdicts[one] for one in DECIDED), open_ones]
    return [_link(table), table.plan.answers, *map(str, counts)]


def _difference(table: TableRecord, control: str) -> str:
    """Return the mean of method minus control, with its interval."""
    claim = table.plan.claims_of(control)[0]
    interval = table.numbers.compare(claim.better, claim.worse, claim.metric).interval
    return "no runs" if interval is None else difference_cell(interval, table.shown[0])
