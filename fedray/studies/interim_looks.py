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
from fedray.storage.files import tables_home
from fedray.storage.json_files import read_json
from fedray.studies.plan import Place, Reporting, StudyPlan
from fedray.studies.registration import changes, design
from fedray.studies.store import DATA, check_table

if TYPE_CHECKING:
    from fedray.studies.outcome import CellResult
    from fedray.studies.study import Study

LOOKED = "The verdicts of"
"""First words of a note on a look."""
MOST = 3
"""Maximum number of changes of a design that a note names."""
GROWING = ("seed", "row", "column", "metric", "experiment")
"""Parts of a design whose additions do not change earlier claims."""


class Look(Frozen):
    """A time at which verdicts were known before the table was changed."""

    source: str
    """The folder of the page; empty: no page."""
    seeds: list[int]
    """The seeds that had been run."""
    changed: list[str] = Field(default_factory=list)
    """Descriptions of later changes of the design, other than seeds."""


class Looks(Frozen):
    """All earlier looks at a table's verdicts."""

    looks: list[Look] = Field(default_factory=list)
    """The looks, in the order in which they were found."""
    dropped: list[str] = Field(default_factory=list)
    """Claims of earlier pages that are no longer tested; the correction counts them."""

    def count(self, test: str) -> int:
        """Return how many times the claims are tested, including this time.

        Args:
            test: `fixed` counts all looks; `anytime` ignores looks before seeds were added, because
                the test stays valid under added seeds.
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
        later = [other for other in self.looks if set(look.seeds) < set(other.seeds)]
        upto = min((other.seeds for other in later), key=len, default=plan.report.seeds)
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
    """Raise an error for a look whose seeds are not a proper part of the reported seeds.

    Raises:
        UserError: naming the look.
    """
    for look in report.looked_at:
        if not look or not set(look) < set(report.seeds):
            raise UserError(
                f"{where}.report.looked_at: {shown(look)} must be some but not all of the report's "
                "seeds: those whose verdicts were known when the others were added"
            )


def restrict_looks(report: Reporting) -> Reporting:
    """Return the report with its looks restricted to the report's seeds.

    Used when the command line replaces the seeds of the file. Empty and complete looks are dropped.
    """
    reduced = [[seed for seed in look if seed in report.seeds] for look in report.looked_at]
    looks = [look for look in reduced if 0 < len(look) < len(report.seeds)]
    return report.model_copy(update={"looked_at": looks})


def find_looks(study: Study, cells: Mapping[Place, CellResult]) -> Looks:
    """Return the earlier looks at the verdicts of a table.

    Pages older than a registration that preceded every run were exploration and do not count.

    Args:
        study: the table; runs that were finished when it began are in `stored` and `taken`.
        cells: its cells.
    """
    plan, current = study.plan, design(study.plan)
    looks: list[Look] = []
    dropped: list[str] = []
    explained = False
    keys = {run.key for cell in cells.values() for run in cell.runs}
    for source, tree in _pages(study):
        page = _design_of(tree)
        if page is None or not set(page["claims"]) & set(current["claims"]):
            continue
        is_own = (tree["table"], tree["scale"]) == (plan.name, plan.scale)
        taken = any(table.source == source for table in study.taken.values())
        if not (is_own or taken or keys & _reported_runs(tree)):
            continue
        if is_own or set(current["claims"]) < set(page["claims"]):
            dropped += [claim for claim in page["claims"] if claim not in current["claims"]]
        looks += validate(Looks, tree.get("looks", {}), source).looks
        seeds, changed = page["seeds"], _changes(page, current)
        if changed or set(seeds) != set(current["seeds"]):
            looks.append(Look(source=source, seeds=seeds, changed=changed))
        else:
            explained = True
    seeds_run = [] if explained or _has_earlier_invocation(study, current) else _stored_seeds(study)
    declared = [*plan.report.looked_at, *([seeds_run] if seeds_run else [])]
    looks += [Look(source="", seeds=seeds) for seeds in declared]
    unique: dict[tuple[frozenset[int], tuple[str, ...]], Look] = {}
    for look in looks:
        unique.setdefault((frozenset(look.seeds), tuple(look.changed)), look)
    return Looks(looks=list(unique.values()), dropped=list(dict.fromkeys(dropped)))


def _pages(study: Study) -> Iterator[tuple[str, Tree]]:
    """Yield the pages whose verdicts may have been known: those taken over, then earlier ones."""
    for table in study.published:
        yield table.source, table.tree
    entry = study.registered
    since = entry.when if entry is not None and not entry.runs_before else ""
    for path in sorted(tables_home().glob(f"*/*/{DATA}")):
        if path.parent == study.home:
            continue
        try:
            tree = check_table(path)
        except UserError:
            continue  # the page is damaged or of an older format, so it cannot be compared
        if since < tree["made"]["when"] <= study.began:
            yield str(path.parent), tree


def _design_of(tree: Tree) -> Tree | None:
    """Return the design of a page or an invocation; None if this version cannot read it."""
    try:
        return design(validate(StudyPlan, tree["plan"], "plan"))
    except UserError:
        return None


def _reported_runs(tree: Tree) -> set[str]:
    return {seed["run"] for cell in tree["cells"] for seed in cell["seeds"]}


def _changes(page: Tree, now: Tree) -> list[str]:
    """Return the changes since a page's design, without those of claims and mere additions."""
    return [
        change
        for change in changes(page, now)
        if not (change.startswith("claim"))
        and not (change.startswith(GROWING) and change.endswith(" added"))
    ]


def _stored_seeds(study: Study) -> list[int]:
    """Return the seeds whose verdicts earlier finished runs allowed to compute without a page.

    If these are all seeds of the report, nothing was added after them and the list is empty.
    """
    plan, seeds_run = study.plan, dict[Place, set[int]]()
    for cell, state in study.states():
        seeds_run[cell.place] = {
            run.seed for run in cell.all_runs(state) if run.key in study.stored
        }
    seeds = set[int]()
    for claim in plan.parsed_claims():
        columns = [claim.better.column] if claim.better.column else list(plan.columns)
        places = [Place(s.row, c) for s in (claim.better, claim.worse) for c in columns]
        seeds |= set.intersection(*(seeds_run[place] for place in places)) & set(plan.report.seeds)
    return sorted(seeds) if len(seeds) < len(plan.report.seeds) else []


def _has_earlier_invocation(study: Study, now: Tree) -> bool:
    """Return True if an earlier invocation of the same design left the stored runs."""
    for path in (tables_home() / study.plan.name).glob("*/plan.json"):
        try:
            tree = read_json(path)
        except UserError:
            continue  # damaged
        if path.parent != study.home and _design_of(tree) == now:
            return True
    return False
