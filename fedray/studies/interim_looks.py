"""Earlier looks at the verdicts of a table, for which the correction accounts.

A user who adds seeds because a claim was undecided, or changes a grid after reading the verdicts,
tests a claim twice. Looks are counted from earlier pages in the results folder, pages given with
`--from`, finished runs without a page, and `report.looked_at` of the table's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from fedray.config import Frozen, Tree, validate
from fedray.errors import UserError, shown
from fedray.files import tables_home
from fedray.records import read_json
from fedray.studies.plan import Place, Reporting, StudyPlan
from fedray.studies.registration import changes, design
from fedray.studies.store import DATA, check_table

if TYPE_CHECKING:
    from fedray.studies.outcome import CellResult
    from fedray.studies.study import Study

LOOKED = "The verdicts of"
"""How the notes on looks begin."""
MOST = 3
"""Changes of a design that a note names."""
GROWING = ("seed", "row", "column", "metric", "experiment")
"""What may be added without a change of the claims that were there."""


class Look(Frozen):
    """Verdicts that were known before the table was changed."""

    source: str
    """The folder of the page; empty: none."""
    seeds: list[int]
    """The seeds that had been run."""
    changed: list[str] = Field(default_factory=list)
    """What else of the design changed afterwards, in words."""


class Looks(Frozen):
    """All earlier looks at a table's verdicts."""

    looks: list[Look] = Field(default_factory=list)
    """In the order in which they were found."""
    dropped: list[str] = Field(default_factory=list)
    """Claims of earlier pages that are no longer tested; the correction counts them."""

    def count(self, test: str) -> int:
        """Return how many times the claims are tested, this time included.

        Args:
            test: `fixed` counts all; `anytime` is valid however often seeds are added.
        """
        return 1 + sum(bool(look.changed) or test == "fixed" for look in self.looks)

    def notes(self, plan: StudyPlan) -> list[str]:
        """Return a sentence for each look, and one for dropped claims."""
        lines = [self._note(look, plan) for look in self.looks]
        if self.dropped:
            lines.append(
                f"Earlier pages also tested {'; '.join(self.dropped)}: the correction counts "
                f"{'it' if len(self.dropped) == 1 else 'them'}"
            )
        return lines

    def _note(self, look: Look, plan: StudyPlan) -> str:
        later = [one for one in self.looks if set(look.seeds) < set(one.seeds)]
        upto = min((one.seeds for one in later), key=len, default=plan.report.seeds)
        added = [seed for seed in upto if seed not in look.seeds]
        verb = "was" if len(added) == 1 else "were"
        reasons = [f"{_seeds(added)} {verb} added"] if added else []
        reasons += look.changed[:MOST]
        more = len(look.changed) - MOST
        reasons += [f"and {more} more changes"] if more > 0 else []
        page = f" ({look.source})" if look.source else ""
        return f"{LOOKED} {_seeds(look.seeds)}{page} were known before: {'; '.join(reasons)}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def check_looks(report: Reporting, where: str) -> None:
    """Refuse a look at seeds that are not reported, or after which none was added.

    Raises:
        UserError: naming the look.
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


def find_looks(study: Study, cells: Mapping[Place, CellResult]) -> Looks:
    """Return the earlier looks at the verdicts of a table.

    Pages older than a registration that preceded every run were exploration and do not count.

    Args:
        study: the table; runs that were finished when it began are in `stored` and `taken`.
        cells: its cells.
    """
    plan, now = study.plan, design(study.plan)
    found: list[Look] = []
    dropped: list[str] = []
    explained = False
    keys = {run.key for cell in cells.values() for run in cell.runs}
    for source, tree in _pages(study):
        page = _design_of(tree)
        if page is None or not set(page["claims"]) & set(now["claims"]):
            continue
        is_own = (tree["table"], tree["scale"]) == (plan.name, plan.scale)
        taken = any(one.source == source for one in study.taken.values())
        if not (is_own or taken or keys & _reported(tree)):
            continue
        if is_own or set(now["claims"]) < set(page["claims"]):
            dropped += [claim for claim in page["claims"] if claim not in now["claims"]]
        found += validate(Looks, tree.get("looks", {}), source).looks
        seeds, changed = page["seeds"], _changes(page, now)
        if changed or set(seeds) != set(now["seeds"]):
            found.append(Look(source=source, seeds=seeds, changed=changed))
        else:
            explained = True
    there = [] if explained or _was_begun(study, now) else _seeds_there(study)
    declared = [*plan.report.looked_at, *([there] if there else [])]
    found += [Look(source="", seeds=seeds) for seeds in declared]
    unique: dict[tuple[frozenset[int], tuple[str, ...]], Look] = {}
    for look in found:
        unique.setdefault((frozenset(look.seeds), tuple(look.changed)), look)
    return Looks(looks=list(unique.values()), dropped=list(dict.fromkeys(dropped)))


def _pages(study: Study) -> Iterator[tuple[str, Tree]]:
    """Yield the pages whose verdicts may have been known: those taken over, then earlier ones."""
    for one in study.published:
        yield one.source, one.tree
    entry = study.registered
    since = entry.when if entry is not None and not entry.runs_before else ""
    for path in sorted(tables_home().glob(f"*/*/{DATA}")):
        if path.parent == study.home:
            continue
        try:
            tree = check_table(path)
        except UserError:
            continue  # an older format, or damaged: its verdicts cannot be compared
        if since < tree["made"]["when"] <= study.began:
            yield str(path.parent), tree


def _design_of(tree: Tree) -> Tree | None:
    """Return the design of a page or an invocation; None if this version cannot read it."""
    try:
        return design(validate(StudyPlan, tree["plan"], "plan"))
    except UserError:
        return None


def _reported(tree: Tree) -> set[str]:
    return {seed["run"] for cell in tree["cells"] for seed in cell["seeds"]}


def _changes(page: Tree, now: Tree) -> list[str]:
    """Return what changed of a page's design, other than its claims and what was only added."""
    return [
        change
        for change in changes(page, now)
        if not (change.startswith("claim"))
        and not (change.startswith(GROWING) and change.endswith(" added"))
    ]


def _seeds_there(study: Study) -> list[int]:
    """Return the seeds, if not all, whose verdicts finished runs without a page gave before."""
    plan, there = study.plan, dict[Place, set[int]]()
    for cell, state in study.states():
        there[cell.place] = {run.seed for run in cell.all_runs(state) if run.key in study.stored}
    seeds = set[int]()
    for claim in plan.parsed_claims():
        columns = [claim.better.column] if claim.better.column else list(plan.columns)
        places = [Place(s.row, c) for s in (claim.better, claim.worse) for c in columns]
        seeds |= set.intersection(*(there[place] for place in places)) & set(plan.report.seeds)
    return sorted(seeds) if len(seeds) < len(plan.report.seeds) else []


def _was_begun(study: Study, now: Tree) -> bool:
    """Return True if an earlier invocation of the same design left the runs that are there."""
    for path in (tables_home() / study.plan.name).glob("*/plan.json"):
        try:
            tree = read_json(path)
        except UserError:
            continue  # damaged
        if path.parent != study.home and _design_of(tree) == now:
            return True
    return False
