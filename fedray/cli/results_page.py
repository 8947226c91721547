"""The summary of docs/results.md: what became of the claims of the tables that were run.

A table that was run lies in docs/results/NAME/, as `fedray docs --take FOLDER` copied it from the
folder of its invocation.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedray.config import Tree
from fedray.errors import UserError
from fedray.files import write_atomic
from fedray.tables.published import DATA

RESULTS = "docs/results.md"
FOLDER = "docs/results"
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
TAKEN = ("table.md", "table.tex", "figure.png")
DECIDED = ("holds", "refuted")
OPEN = ("undecided", "not asked")


def take(folder: Path, root: Path) -> Path:
    """Copy the page of a table's invocation into the checkout; returns where to.

    Raises:
        UserError: when the folder holds no table.
    """
    found = _read(folder / DATA)
    to = root / FOLDER / str(found["table"])
    to.mkdir(parents=True, exist_ok=True)
    for name in TAKEN:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, to / name)
    write_atomic(to / DATA, json.dumps(found, separators=(",", ":")) + "\n")
    return to


def results_page(root: Path, text: str) -> str:
    """docs/results.md with the summary as it should be; without its place unchanged."""
    if BEGIN not in text or END not in text:
        return text
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n\n{summary(taken(root))}\n{END}{after}"


def taken(root: Path) -> list[Tree]:
    """The tables that were run, by name."""
    return [_read(path) for path in sorted((root / FOLDER).glob(f"*/{DATA}"))]


def summary(tables: Sequence[Tree]) -> str:
    """How many claims are decided, a line for each table, then each table's verdicts."""
    verdicts = Counter(each["verdict"] for table in tables for each in table["claims"])
    asked, decided = verdicts.total(), sum(verdicts[one] for one in DECIDED)
    parts = [
        f"**{decided} of {asked} claims decided** ({verdicts['holds']} hold, "
        f"{verdicts['refuted']} refuted) in {len(tables)} tables.",
        "",
        "| table | question | holds | refuted | undecided | controls |",
        "|---|---|---|---|---|---|",
        *(_line(table) for table in tables),
        "",
    ]
    for table in tables:
        parts += _verdicts(table)
    return "\n".join(parts).rstrip() + "\n"


def _line(table: Tree) -> str:
    verdicts = Counter(each["verdict"] for each in table["claims"])
    controls = "; ".join(f"{each['control']}: {each['reading']}" for each in table["controls"])
    cells = [
        f"[{table['table']}](results/{table['table']}/table.md)",
        table["answers"],
        *(str(verdicts[one]) for one in DECIDED),
        str(sum(verdicts[one] for one in OPEN)),
        controls or "not asked",
    ]
    return f"| {' | '.join(cells)} |"


def _verdicts(table: Tree) -> list[str]:
    made, plan = table["made"], table["plan"]
    seeds = ", ".join(map(str, plan["report"]["seeds"]))
    return [
        f"**[{table['table']}](results/{table['table']}/table.md)**: `{made['command']}`, "
        f"seeds {seeds}, {made['runs']} runs, {made['seconds'] / 3600:.1f} h of computing, commit "
        f"{made['commit']}, {made['machine']}.",
        "",
        "| claim | difference | verdict |",
        "|---|---|---|",
        *(_verdict(table, each) for each in table["claims"]),
        "",
    ]


def _verdict(table: Tree, claim: Tree) -> str:
    verdict = claim["verdict"]
    if verdict == "undecided" and claim["seeds_needed"]:
        verdict = f"undecided; {claim['seeds_needed']} seeds would decide"
    metric, first = claim["metric"], table["plan"]["metrics"][0]
    about = f" ({metric})" if metric not in (first, *claim["claim"].split()) else ""
    return f"| {claim['claim']}{about} | {_difference(table, claim)} | {verdict} |"


def _difference(table: Tree, claim: Tree) -> str:
    """The mean difference with its interval."""
    if "mean" not in claim:
        return "no runs"
    form = "+.1f" if table["units"][claim["metric"]] == "share" else "+.4g"
    text = format(claim["mean"], form)
    if "low" in claim:
        text += f" [{claim['low']:{form}}, {claim['high']:{form}}]"
    return text


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} is not there; give the folder of a table's invocation, as fedray table "
            "prints it"
        ) from None
