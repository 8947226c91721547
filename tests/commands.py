"""The words of the command `fedray`, each as a function of what stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedray.cli.main import main
from fedray.config import parse_assignments
from fedray.studies.file import Kind, plan_study, read_study
from fedray.studies.plan import StudyPlan


def _word(name: str) -> Callable[[Sequence[str]], int]:
    return lambda argv: main([name, *argv])


(
    analyse, check, cost, data, diff, doctor, generate, get, ls, new, papers,
    predict, report, run, show, sweep, table, upload, verify,
) = map(
    _word,
    ("analyse", "check", "cost", "data", "diff", "doctor", "generate", "get",
     "ls", "new", "papers", "predict", "report", "run", "show", "sweep", "table", "upload",
     "verify"),
)  # fmt: skip


def plan_words(
    kind: Kind,
    name: str,
    assignments: Iterable[str] = (),
    scale: str | None = None,
    plugins: Sequence[str] = (),
    rows: Sequence[str] = (),
) -> StudyPlan:
    """Plan a study with keys as a command line has them, "key=value"."""
    pairs = parse_assignments(assignments)
    return plan_study(kind, name, pairs, scale, plugins, rows)


def study_tree(path: Path) -> dict[str, Any]:
    """Return the content of a study's file, merged with the files that it extends."""
    return read_study("table" if path.parent.name == "tables" else "sweep", str(path)).tree
