"""The generated parts of docs/results.md and docs/findings.md: verdicts, controls, commands.

A table that was run lies in docs/results/NAME/, as `--take FOLDER` copied it from the
folder of its invocation; its claims are on its own page.
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
"""How the tables of the four papers begin."""
ABSOLUTE = re.compile(r"(?<![\w.:/~])/(?:[^\s/'\"`|()]+/)+(?=[^\s/])")
"""The folders of a path on one machine, up to the file's name."""
FAILED = ("seeds", "dropped")
"""What of a cell says why runs failed."""
DECIDED = ("holds", "refuted")
OPEN = ("undecided", "not asked")


def take(folder: Path, root: Path) -> Path:
    """Copy the page of a table's invocation into the checkout; return the new folder.

    The reasons of failed runs name files of the machine that ran them; their folders are cut off.

    Raises:
        UserError: when the folder holds no table, or the table is damaged or edited.
    """
    found = check_table(folder / DATA)
    to = root / FOLDER / str(found["table"])
    to.mkdir(parents=True, exist_ok=True)
    short = _without_folders(found)
    for name in TAKEN:
        if (folder / name).is_file():
            write_atomic(to / name, short((folder / name).read_text(encoding="utf-8")))
    if (folder / FIGURE).is_file():
        shutil.copyfile(folder / FIGURE, to / FIGURE)
    shortened = sealed(json.loads(short(json.dumps(found))))
    write_atomic(to / DATA, json.dumps(shortened, separators=(",", ":")) + "\n")
    return to


def _without_folders(table: Tree) -> Callable[[str], str]:
    """Return a function that cuts folders of one machine from the reasons of failed runs."""
    runs = [
        *table.get("runs", ()),
        *(each for cell in table.get("cells", ()) for key in FAILED for each in cell.get(key, ())),
    ]
    reasons = {run["reason"] for run in runs if run.get("reason")}
    quoted = {json.dumps(reason)[1:-1] for reason in reasons}  # as table.json writes them

    def short(text: str) -> str:
        for reason in sorted(reasons | quoted, key=len, reverse=True):
            text = text.replace(reason, ABSOLUTE.sub("", reason))
        return text

    return short


def with_part(text: str, part: str) -> str:
    """Return a page with its generated part; unchanged without a place for it."""
    if BEGIN not in text or END not in text:
        return text
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n\n{part.strip()}\n\n{END}{after}"


def not_run(root: Path) -> int:
    """Return how many of the papers' tables are shipped and were not run."""
    there = {path.parent.name for path in (root / FOLDER).glob(f"*/{DATA}")}
    shipped = {path.stem for path in (root / TABLES).glob("*.yaml")}
    return sum(name.startswith(OF_PAPERS) for name in shipped - there)


def summary(tables: Sequence[Tree], others: int) -> str:
    """Return how many claims are decided, by table and by protocol.

    Args:
        tables: those that were run.
        others: how many were not run.
    """
    verdicts = _verdicts(tables)
    each_seed = _verdicts([table for table in tables if _once(table) is None])
    header = ["table", "question", "tuned", "holds", "refuted", "undecided"]
    return render(
        "summary",
        asked=verdicts.total(),
        decided=_decided(verdicts),
        each_seed={"asked": each_seed.total(), "decided": _decided(each_seed)},
        fragile=sum(bool(claim.get("fragile")) for each in tables for claim in each["claims"]),
        holds=verdicts["holds"],
        refuted=verdicts["refuted"],
        counts=markdown_table(header, map(_counts, tables)),
        others=others,
        tables=tables,
    )


def details(tables: Sequence[Tree]) -> str:
    """Return the controls of tables, and how each table was made."""
    controls = [_control(table, each) for table in tables for each in table["controls"]]
    return render(
        "details",
        controls=controls
        and markdown_table(["table", "control", "method minus control", "reading"], controls),
        tables=[
            {**table, "link": _link(table), "commits": commits_in(table), "again": _again(table)}
            for table in tables
        ],
    )


def _verdicts(tables: Sequence[Tree]) -> Counter[str]:
    return Counter(claim["verdict"] for table in tables for claim in table["claims"])


def _decided(verdicts: Counter[str]) -> int:
    return sum(verdicts[verdict] for verdict in DECIDED)


def _once(table: Tree) -> list[int] | None:
    """Return the seeds that chose for all reported seeds; None where each chose by itself."""
    tuning = table["plan"]["tuning"]
    found: list[int] | None = tuning.get("once", tuning.get("seeds"))
    return found


def _link(table: Tree) -> str:
    return f"[{table['table']}](results/{table['table']}/table.md)"


def _again(table: Tree) -> str:
    """Return the command that makes a table again; one that was tuned once says on which seeds."""
    command, once = str(table["made"]["command"]), _once(table)
    if once is None or "tuning." in command:
        return command
    before, between, after = command.partition(" --")
    return f"{before} tuning.once={json.dumps(once, separators=(',', ':'))}{between}{after}"


def _counts(table: Tree) -> list[str]:
    verdicts = _verdicts([table])
    open_ones = sum(verdicts[one] for one in OPEN)
    counts = [*(verdicts[one] for one in DECIDED), open_ones]
    tuned = "each seed" if _once(table) is None else "once"
    return [_link(table), table["answers"], tuned, *map(str, counts)]


def _control(table: Tree, each: Tree) -> list[str]:
    found = f"{each['control']} for {each['of']}"
    return [_link(table), found, _difference(table, each), each["reading"]]


def _difference(table: Tree, each: Tree) -> str:
    """Return the mean difference with its interval, of the table's first metric."""
    if "mean" not in each:
        return "no runs"
    is_share = table["units"][table["plan"]["metrics"][0]] == "share"
    form = "+.1f" if is_share else "+.4g"
    text = format(each["mean"], form)
    if "low" in each:
        text += f" [{each['low']:{form}}, {each['high']:{form}}]"
    return text
