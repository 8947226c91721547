"""Looks at a table's verdicts before all its seeds were there, which the correction counts.

Who adds seeds because a claim was undecided tests it twice. A table's file says so (`looked_at`),
and so does a table that takes the runs of its own older page (`--from`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedray.errors import UserError, shown
from fedray.studies.plan import Reporting, StudyPlan
from fedray.studies.store import Published

LOOKED = "The verdicts of"
"""Begins the note on an earlier look, which stays when the table is made again."""
ADDED = "were known when seeds were added"


def check_looks(report: Reporting, where: str) -> None:
    """Refuse a look at seeds that are not reported, or after which none was added.

    Raises:
        UserError: naming it.
    """
    for look in report.looked_at:
        if not look or not set(look) < set(report.seeds):
            raise UserError(
                f"{where}.report.looked_at: {shown(look)} is to be some of the report's seeds, and "
                "not all: those whose verdicts were known when the others were added"
            )


def within_seeds(report: Reporting) -> Reporting:
    """Return a report of other seeds than its file's, with what the file's looks mean for these."""
    seen = [[seed for seed in look if seed in report.seeds] for look in report.looked_at]
    looks = [look for look in seen if 0 < len(look) < len(report.seeds)]
    return report.model_copy(update={"looked_at": looks})


def looks(plan: StudyPlan, pages: Sequence[Published]) -> list[str]:
    """Return a note for each time that seeds were added after verdicts were known.

    Args:
        plan: the table; its file may say it.
        pages: its own older pages whose runs it took, each of which was a look.
    """
    said = [
        (f"seed{'s' * (len(look) > 1)} {_numbers(look)}", set(look))
        for look in plan.report.looked_at
    ]
    known = [*((page.source, set(page.seeds)) for page in pages), *said]
    found = [_note(name, _added(plan, seeds, [each for _, each in known])) for name, seeds in known]
    older = [note for page in pages for note in page.notes_that_begin(LOOKED)]
    notes: dict[str, str] = {}
    for note in (*found[: len(pages)], *older, *found[len(pages) :]):
        notes.setdefault(note.partition(ADDED)[2], note)  # one note for what was added at a time
    return [note for added, note in notes.items() if added]


def _added(plan: StudyPlan, seen: set[int], known: Iterable[set[int]]) -> list[int]:
    """Return the seeds that were added after a look: up to the next one, or else all others."""
    later = [each for each in known if seen < each]
    upto = min(later, key=len, default=set(plan.report.seeds))
    return [seed for seed in plan.report.seeds if seed in upto - seen]


def _note(name: str, added: Sequence[int]) -> str:
    if not added:
        return ""
    return f"{LOOKED} {name} {ADDED} ({_numbers(added)})"


def _numbers(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))
