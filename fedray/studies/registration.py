"""Registered plans: the design of a table, recorded before its first run.

    <results>/tables/<table>/registered.json

A registration holds the design of a table (claims, seeds, rows, spaces, budget) and its SHA-256.
Publish the hash, for example with a preregistration, to prove the date to others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fedray.config import Frozen, Tree, validate
from fedray.storage.environment import versions
from fedray.storage.files import make_folder, write_json
from fedray.storage.json_files import read_checked, sealed
from fedray.studies.plan import StudyPlan

if TYPE_CHECKING:
    from fedray.studies.study import Study

FILE = "registered.json"
NOT_DESIGN = {
    "name", "kind", "answers", "glosses", "paper", "hours", "max_concurrent", "left_out", "scale",
}  # fmt: skip
"""Fields of a plan that change no number and no verdict."""
NAMES = {"bases": "experiment", "more": "seed"}
"""Names of a design's parts in messages; the default is the key without its s."""


class Registration(Frozen):
    """The record of a registered design."""

    when: str
    """Local time of the registration."""
    commit: str
    """The commit of the code that registered it."""
    scale: str
    """laptop, desktop or paper."""
    sha256: str
    """Hash of the design."""
    runs_before: int = Field(ge=0)
    """Number of the table's runs that were finished before."""
    design: Tree
    """The design, as the function `design` returns it."""


def design(plan: StudyPlan) -> Tree:
    """Return the parts of a plan that determine its verdicts."""
    tree = plan.model_dump(mode="json", exclude=NOT_DESIGN)
    for row in tree["rows"].values():
        del row["label"]
    report = tree.pop("report")
    more = [f"{seed} of {row}" for row, seeds in report["more"].items() for seed in seeds]
    seeds = {"seeds": report["seeds"], "more": more}
    claims = [f"{claim.question} ({claim.metric})" for claim in plan.parsed_claims()]
    return {**tree, **seeds, "rounds": report["rounds"], "claims": claims}


def digest(design: Tree) -> str:
    """Return the SHA-256 of a design."""
    return hashlib.sha256(json.dumps(design, sort_keys=True).encode()).hexdigest()


def changes(before: Tree, now: Tree) -> list[str]:
    """Describe the differences between two designs: "seeds 5, 6 added", "tuning changed"."""
    lines: list[str] = []
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        singular = NAMES.get(key, key.removesuffix("s"))
        if isinstance(old, Sequence) and isinstance(new, Sequence) and not isinstance(old, str):
            lines += _list_changes(singular, old, new)
        elif isinstance(old, Mapping) and isinstance(new, Mapping) and key != "tuning":
            lines += _mapping_changes(singular, old, new)
        else:
            lines.append(f"{key} changed")
    return lines


def _list_changes(name: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[str]:
    for verb, present, other in (("added", new, old), ("removed", old, new)):
        if entries := [str(entry) for entry in present if entry not in other]:
            yield f"{name}{'s' * (len(entries) > 1)} {', '.join(entries)} {verb}"


def _mapping_changes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for entry in dict.fromkeys([*old, *new]):
        if old.get(entry) != new.get(entry):
            verb = "added" if entry not in old else "removed" if entry not in new else "changed"
            yield f"{name} {entry} {verb}"


def register(study: Study, home: Path) -> Registration:
    """Record a table's design and return the registration; earlier registrations stay unchanged.

    If the table has no invocation yet, the design replaces registrations of the same scale that
    preceded every run.

    Args:
        study: the table, not begun.
        home: the folder of the table's invocations.
    """
    plan, now = study.plan, design(study.plan)
    entries, sha256 = _read(home), digest(now)
    for entry in entries:
        if (entry.scale, entry.sha256) == (plan.scale, sha256):
            return entry
    if not any(home.glob("*/plan.json")):
        entries = [entry for entry in entries if entry.scale != plan.scale or entry.runs_before]
    study.states()  # fills study.stored and study.taken
    entry = Registration(
        when=datetime.now().isoformat(timespec="seconds"),
        commit=versions().get("git", "unknown"),
        scale=plan.scale,
        sha256=sha256,
        runs_before=len({*study.stored, *study.taken}),
        design=now,
    )
    make_folder(home)
    trees = [registration.model_dump(mode="json") for registration in (*entries, entry)]
    write_json(home / FILE, sealed({"registrations": trees}))
    return entry


def first_registration(home: Path, scale: str) -> Registration | None:
    """Return the first registration of a table at a scale, or None.

    Raises:
        UserError: if the file is damaged or was edited.
    """
    return next((entry for entry in _read(home) if entry.scale == scale), None)


def _read(home: Path) -> list[Registration]:
    path = home / FILE
    if not path.is_file():
        return []
    entries = read_checked(path)["registrations"]
    return [validate(Registration, entry, str(path)) for entry in entries]


def describe_registration(entry: Registration | None, plan: StudyPlan) -> str:
    """Return a sentence about a plan's registration, for the table's page."""
    if entry is None:
        return "the plan was not registered before the runs"
    early = "before the first run"
    when = early if not entry.runs_before else f"when {entry.runs_before} runs were finished"
    since = changes(entry.design, design(plan))
    changed = f"; changed since: {'; '.join(since)}" if since else "; nothing changed since"
    return f"registered {when}, {entry.when}, sha256 {entry.sha256}{changed}"
