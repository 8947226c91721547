"""The generated parts of docs/results.md and docs/findings.md: verdicts, controls, commands.

docs/results/NAME/ holds a published table, which `--take FOLDER` copied from the folder of its
invocation, and a page with its claims.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from _build.published import FOLDER
from _build.templates import render
from fedray.config import Tree
from fedray.files import write_atomic
from fedray.markdown import markdown_table
from fedray.records import sealed
from fedray.studies.store import DATA, check_table, commits_in

RESULTS, FINDINGS = "docs/results.md", "docs/findings.md"
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
TAKEN = ("table.md", "table.tex")
FIGURE = "figure.png"
TABLES = "tune/tables"
OF_PAPERS = ("dp2fl_", "fedglcl_", "fedmgp_", "fedtsp_")
"""Prefixes of the names of the four papers' tables."""
ABSOLUTE = re.compile(r"(?<![\w.:/~])/(?:[^\s/'\"`|()]+/)+(?=[^\s/])")
"""The folders of a path on one machine, up to the file's name."""
FAILED = ("seeds", "dropped")
"""The keys of a cell that hold reasons of failed runs."""
DECIDED = ("holds", "refuted")
OPEN = ("undecided", "not asked")


def take(folder: Path, root: Path) -> Path:
    """Copy the page of a table's invocation into the checkout; return the new folder.

    Folders of the machine that ran the table are removed from the reasons of failed runs.

    Raises:
        UserError: if the folder holds no table, or the table is damaged or edited.
    """
    tree = check_table(folder / DATA)
    to = root / FOLDER / str(tree["table"])
    to.mkdir(parents=True, exist_ok=True)
    short = _without_folders(tree)
    for name in TAKEN:
        if (folder / name).is_file():
            write_atomic(to / name, short((folder / name).read_text(encoding="utf-8")))
    if (folder / FIGURE).is_file():
        shutil.copyfile(folder / FIGURE, to / FIGURE)
    shortened = sealed(json.loads(short(json.dumps(tree))))
    write_atomic(to / DATA, json.dumps(shortened, separators=(",", ":")) + "\n")
    return to


def _without_folders(table: Tree) -> Callable[[str], str]:
    """Return a function that removes a machine's folders from the reasons of failed runs."""
    runs = [
        *table.get("runs", ()),
        *(run for cell in table.get("cells", ()) for key in FAILED for run in cell.get(key, ())),
    ]
    reasons = {run["reason"] for run in runs if run.get("reason")}
    quoted = {json.dumps(reason)[1:-1] for reason in reasons}  # as table.json writes them

    def short(text: str) -> str:
        for reason in sorted(reasons | quoted, key=len, reverse=True):
            text = text.replace(reason, ABSOLUTE.sub("", reason))
        return text

    return short


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


def summary(tables: Sequence[Tree], others: int) -> str:
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
        decided=_decided(verdicts),
        fragile=sum(bool(claim.get("fragile")) for table in tables for claim in table["claims"]),
        holds=verdicts["holds"],
        refuted=verdicts["refuted"],
        counts=markdown_table(header, map(_counts, tables)),
        others=others,
        tables=tables,
    )


def details(tables: Sequence[Tree]) -> str:
    """Return the controls of tables and their commands as text."""
    controls = [_control(table, control) for table in tables for control in table["controls"]]
    return render(
        "details",
        controls=controls
        and markdown_table(["table", "control", "method minus control", "reading"], controls),
        tables=[
            {**table, "link": _link(table), "commits": commits_in(table), "again": table["made"]["command"]}
            for table in tables
        ],
    )


def _verdicts(tables: Sequence[Tree]) -> Counter[str]:
    return Counter(claim["verdict"] for table in tables for claim in table["claims"])


def _decided(verdicts: Counter[str]) -> int:
    return sum(verdicts[verdict] for verdict in DECIDED)


def _link(table: Tree) -> str:
    return f"[{table['table']}](results/{table['table']}/table.md)"


def _counts(table: Tree) -> list[str]:
    verdicts = _verdicts([table])
    open_ones = sum(verdicts[one] for one in OPEN)
    counts = [*(verdicts[one] for one in DECIDED), open_ones]
    return [_link(table), table["answers"], *map(str, counts)]


def _control(table: Tree, control: Tree) -> list[str]:
    label = f"{control['control']} for {control['of']}"
    return [_link(table), label, _difference(table, control), control["reading"]]


def _difference(table: Tree, control: Tree) -> str:
    """Return the mean difference of the table's first metric, with its interval."""
    if "mean" not in control:
        return "no runs"
    is_share = table["units"][table["plan"]["metrics"][0]] == "share"
    form = "+.1f" if is_share else "+.4g"
    text = format(control["mean"], form)
    if "low" in control:
        text += f" [{control['low']:{form}}, {control['high']:{form}}]"
    return text
