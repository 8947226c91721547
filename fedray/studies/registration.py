"""Registered plans: what a table is going to test, written down before its first run.

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
from fedray.files import make_folder, write_json
from fedray.records import read_checked, sealed, versions
from fedray.studies.plan import StudyPlan

if TYPE_CHECKING:
    from fedray.studies.study import Study

FILE = "registered.json"
NOT_DESIGN = {
    "name", "kind", "answers", "glosses", "paper", "hours", "max_concurrent", "left_out", "scale",
}  # fmt: skip
"""Fields of a plan that change no number and no verdict."""
NAMES = {"bases": "experiment", "more": "seed"}
"""What parts of a design are called, other than by their names without the s."""


class Registration(Frozen):
    """A design as it was registered."""

    when: str
    """Local time."""
    commit: str
    """The commit of the code that registered it."""
    scale: str
    """laptop, desktop or paper."""
    sha256: str
    """Hash of the design."""
    runs_before: int = Field(ge=0)
    """How many runs of the table were finished by then."""
    design: Tree
    """See `design`."""


def design(plan: StudyPlan) -> Tree:
    """Return all of a plan that decides which verdicts it gives."""
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
    """Return in words what differs between two designs: "seeds 5, 6 added", "tuning changed"."""
    found: list[str] = []
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        singular = NAMES.get(key, key.removesuffix("s"))
        if isinstance(old, Sequence) and isinstance(new, Sequence) and not isinstance(old, str):
            found += _of_lists(singular, old, new)
        elif isinstance(old, Mapping) and isinstance(new, Mapping) and key != "tuning":
            found += _of_mappings(singular, old, new)
        else:
            found.append(f"{key} changed")
    return found


def _of_lists(name: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[str]:
    for verb, there, elsewhere in (("added", new, old), ("removed", old, new)):
        if entries := [str(entry) for entry in there if entry not in elsewhere]:
            yield f"{name}{'s' * (len(entries) > 1)} {', '.join(entries)} {verb}"


def _of_mappings(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for entry in dict.fromkeys([*old, *new]):
        if old.get(entry) != new.get(entry):
            verb = "added" if entry not in old else "removed" if entry not in new else "changed"
            yield f"{name} {entry} {verb}"


def register(study: Study, home: Path) -> Registration:
    """Write down a table's design; an earlier registration is not changed.

    A design without any run, of which no invocation was begun, is replaced by another one.

    Args:
        study: the table, not begun.
        home: the folder of the table's invocations.
    """
    plan, now = study.plan, design(study.plan)
    known, sha256 = _read(home), digest(now)
    for entry in known:
        if (entry.scale, entry.sha256) == (plan.scale, sha256):
            return entry
    if not any(home.glob("*/plan.json")):
        known = [entry for entry in known if entry.scale != plan.scale or entry.runs_before]
    study.states()  # looks for runs
    entry = Registration(
        when=datetime.now().isoformat(timespec="seconds"),
        commit=versions().get("git", "unknown"),
        scale=plan.scale,
        sha256=sha256,
        runs_before=len({*study.stored, *study.taken}),
        design=now,
    )
    make_folder(home)
    entries = [each.model_dump(mode="json") for each in (*known, entry)]
    write_json(home / FILE, sealed({"registrations": entries}))
    return entry


def registered(home: Path, scale: str) -> Registration | None:
    """Return the first registration of a table at a scale; None if there is none.

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


def described(entry: Registration | None, plan: StudyPlan) -> str:
    """Return the sentence of a page about the registration of its plan."""
    if entry is None:
        return "the plan was not registered before the runs"
    early = "before the first run"
    when = early if not entry.runs_before else f"when {entry.runs_before} runs were finished"
    since = changes(entry.design, design(plan))
    changed = f"; changed since: {'; '.join(since)}" if since else "; nothing changed since"
    return f"registered {when}, {entry.when}, sha256 {entry.sha256}{changed}"
