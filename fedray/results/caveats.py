"""Caveats printed below reports and tables: unequal effort, missing runs, choices at an edge."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median_low
from typing import TYPE_CHECKING, Any

from fedray.config import Experiment, flatten
from fedray.results.blocks import Report, explain_blocks, method_differences
from fedray.results.frame import NOT_COMPARED, Group
from fedray.results.labels import config_label, show_value, text_of
from fedray.storage.environment import NUMERIC

if TYPE_CHECKING:
    from fedray.studies.cell import CellState, DroppedChoice
    from fedray.studies.outcome import CellResult
    from fedray.studies.plan import Place, StudyPlan
    from fedray.studies.space import Axis
    from fedray.studies.store import Numbers

EDGES = {
    "budget": "the budget is spent",
    "bound": "the next value is out of bounds",
    "off": "tuning.extend is false",
    "late": "grids are extended only for the first choice, which diverged later",
    "joint": "keys that vary together are not extended",
}
"""Reasons why a grid is not extended beyond a choice, by `Edge.why`."""

MORE = 1.5
"""A caveat names unequal work if the largest count is above this multiple of the smallest."""

# --- reports --------------------------------------------------------------------------------------


def report_caveats(report: Report) -> list[str]:
    """Return the caveats of a report: unequal files, environments, rounds, data and settings."""
    methods = dict.fromkeys(note for block in report.blocks for note in method_differences(block))
    return [
        *_files(report.groups),
        *_environments(report.groups),
        *_unfinished_runs(report.groups),
        *explain_blocks(report.blocks),
        *methods,
        *report.notes,
    ]


def _files(groups: Sequence[Group]) -> Iterator[str]:
    """Yield input files with equal names but different contents."""
    named: dict[tuple[str, str], dict[str | None, Group]] = defaultdict(dict)
    for member in groups:
        for key, content in member.runs[0].run.info.files_sha256.items():
            named[key, text_of(member.keys.get(key))].setdefault(content, member)
    for (key, _), by_content in named.items():
        first, *further = by_content.values()
        yield from (f"{key} differs: {first.label} and {other.label}" for other in further)


def _environments(groups: Sequence[Group]) -> Iterator[str]:
    """Yield changes of the environment between the seeds of a group, or within a run."""
    for member in groups:
        infos = [loaded.run.info for loaded in member.runs]
        first = infos[0]
        changes = {info.seed: first.environment.changes(info.environment) for info in infos[1:]}
        seed = next((seed for seed, changed in changes.items() if changed), None)
        if seed is not None:
            yield (
                f"{member.label}: seeds {first.seed} and {seed} were made in different "
                f"environments: {'; '.join(changes[seed])}"
            )
        for info in infos:
            for entry in info.earlier_environments:
                yield (
                    f"{member.label}, seed {info.seed}: the rounds up to {entry.until_round} were "
                    "made in another environment, which result.json names"
                )


def _unfinished_runs(groups: Sequence[Group]) -> Iterator[str]:
    for member in groups:
        for loaded in member.runs:
            rounds = f"{max(loaded.run.done, 0)} of {loaded.run.info.planned}"
            if not loaded.run.is_finished:
                yield f"not finished: {member.label} seed {loaded.seed} has {rounds} rounds"


# --- tables ---------------------------------------------------------------------------------------


def table_caveats(
    plan: StudyPlan,
    cells: Mapping[Place, CellResult],
    experiments: Mapping[Place, Experiment],
    commits: Sequence[str],
    runs: Sequence[Numbers],
) -> list[str]:
    """Return the caveats of a table.

    Args:
        plan: the table.
        cells: results of the cells.
        experiments: experiment of a reported run of each cell; before a choice, of the cell's
            first configuration.
        commits: commits of the code that made the runs.
        runs: all runs with a result, those of tuning included.
    """
    columns = {
        column: {place.row: cells[place] for place in plan.places if place.column == column}
        for column in plan.columns
    }
    reported = [
        {place.row: experiments[place] for place in plan.places if place.column == column}
        for column in plan.columns
    ]
    versions = f"Runs are of {len(commits)} versions of the code: {', '.join(commits)}"
    return [
        *_unfinished_cells(cells),
        *_choice(plan),
        *_borrowed_choices(plan),
        *_metrics(plan),
        *(note for column, rows in columns.items() for note in _effort(plan, column, rows)),
        *_edges(plan, cells),
        *_failures(cells),
        *_dropped_choices(cells),
        *(note for column, rows in columns.items() for note in _data(column, rows)),
        *dict.fromkeys(note for rows in reported for note in _settings(plan, rows)),
        *dict.fromkeys(note for rows in reported for note in _searches(plan, rows)),
        *_work(cells),
        *([versions] if len(commits) > 1 else []),
        *_machines(runs),
    ]


def _machines(runs: Sequence[Numbers]) -> Iterator[str]:
    """Yield the hardware and the library versions that runs do not share, with counts of runs.

    Runs that recorded none are left out.
    """
    made_by = {"hardware": [run.hardware for run in runs]}
    made_by |= {
        f"versions of {package}": [run.versions.get(package, "") for run in runs]
        for package in NUMERIC
        if package not in ("git", "fedray")  # commits are named
    }
    for what, texts in made_by.items():
        counts = Counter(filter(None, texts))
        if len(counts) > 1:
            named = "; ".join(f"{text} ({count} runs)" for text, count in counts.most_common())
            yield f"Runs were made with different {what}: {named}"


def _unfinished_cells(cells: Mapping[Place, CellResult]) -> Iterator[str]:
    unfinished = [cell for cell in cells.values() if cell.state.phase in ("tuning", "report")]
    if unfinished:
        yield f"NOT FINISHED: {len(unfinished)} of {len(cells)} cells are still to be run"


def _borrowed_choices(plan: StudyPlan) -> Iterator[str]:
    """Yield a note for each row of a claim that takes over another row's choice."""
    named = {side.row for claim in plan.parsed_claims() for side in (claim.better, claim.worse)}
    for name, row in plan.rows.items():
        if name in named and row.tuned_as and not row.control:
            yield f"{name} was not tuned by itself: it takes over the choice of {row.tuned_as}"


def _choice(plan: StudyPlan) -> Iterator[str]:
    if plan.select == "test":
        yield (
            "Configurations and rounds were chosen on the TEST images, as papers often do: every "
            "number is optimistic, and is marked with †"
        )


def _metrics(plan: StudyPlan) -> Iterator[str]:
    """Yield a note for each metric that a row replaces or lacks."""
    for name, row in plan.rows.items():
        for metric, row_metric in row.metrics.items():
            yield f"{name}: " + (
                f"its {metric} is {row_metric}" if row_metric else f"it has no {metric}"
            )


def _effort(plan: StudyPlan, column: str, rows: Mapping[str, CellResult]) -> Iterator[str]:
    """Yield a note if rows of a column tried different numbers of configurations."""
    tried = {
        row: count_text([tried for tried, _ in tried_by_seed(cell.state)])
        for row, cell in rows.items()
        if cell.state.chosen is not None and plan.leader(cell.place) == cell.place
    }
    if len({*tried.values()}) > 1:
        counts = ", ".join(f"{row} {count}" for row, count in tried.items())
        yield (
            f"{f'In {column} rows' if len(plan.columns) > 1 else 'Rows'} tried different numbers "
            f"of configurations, all at most {plan.tuning.configurations}: {counts}"
        )


def tried_by_seed(state: CellState) -> list[tuple[int, int]]:
    """Return how many configurations each seed tried, and how many of them beyond its grid."""
    seeds = dict.fromkeys(seed for result in state.tried for seed in result.scores)
    of_seeds = [[result for result in state.tried if seed in result.scores] for seed in seeds]
    return [(len(tried), sum(result.added for result in tried)) for tried in of_seeds] or [(1, 0)]


def count_text(counts: Sequence[int]) -> str:
    """Return counts as a text: "4", or "3 to 5" if they differ."""
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def _edges(plan: StudyPlan, cells: Mapping[Place, CellResult]) -> Iterator[str]:
    """Yield choices at an edge of the space; a shared choice is noted only at its leader."""
    for place, cell in cells.items():
        leader = plan.leader(place)
        if leader != place and cells[leader].state.chosen == cell.state.chosen:
            continue
        for edge in cell.state.edges:
            yield f"{place}: the choice {edge} ({EDGES[edge.why]})"


def _failures(cells: Mapping[Place, CellResult]) -> Iterator[str]:
    for place, cell in cells.items():
        failed = [tried for tried in cell.state.tried if tried.objective is None]
        if failed:
            yield f"{place}: {len(failed)} of {len(cell.state.tried)} configurations failed"
        for result in cell.seeds:
            if result.reason is not None:
                yield f"{place}, seed {result.seed} failed: {result.reason}"


def _dropped_choices(cells: Mapping[Place, CellResult]) -> Iterator[str]:
    """Yield choices that diverged in the report, and the configurations that replace them."""
    for place, cell in cells.items():
        state = cell.state
        for dropped, reason in zip(state.dropped, cell.dropped, strict=True):
            yield f"{place}: {dropped_text(dropped)}: {reason}"
        late = {seed for dropped in state.dropped for seed in dropped.seeds}
        for seed, config in state.choices.items():
            if seed in late and state.phase == "over":
                first = "the first choice, because all choices diverged"
                instead = first if seed in state.diverged else "the next by validation"
                yield f"{place}: reported on seed {seed} is {config_label(config)}, {instead}"


def dropped_text(dropped: DroppedChoice) -> str:
    """Return a text such as "lr=0.5 diverged on seed 1"."""
    seeds = ", ".join(map(str, dropped.seeds))
    return (
        f"{config_label(dropped.config)} diverged on seed{'s' * (len(dropped.seeds) > 1)} {seeds}"
    )


def _data(column: str, rows: Mapping[str, CellResult]) -> Iterator[str]:
    """Yield a note if rows of a column did not have the same images, or the same clients."""
    runs = [
        (result.seed, result.measured)
        for cell in rows.values()
        for result in cell.seeds
        if result.measured is not None
    ]
    partitions: dict[int, set[str | None]] = defaultdict(set)
    for seed, measured in runs:
        partitions[seed].add(measured.partition)
    seeds = [str(seed) for seed, hashes in partitions.items() if len(hashes) > 1]
    if len({measured.data for _, measured in runs}) > 1:
        yield f"{column}: rows have different images or labels"
    elif seeds:
        yield f"{column}: rows have different partitions, seed {', '.join(seeds)}"


def _settings(plan: StudyPlan, rows: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield keys in which rows differ, except keys of the method and searched keys."""
    searched = {key for row in plan.rows.values() for axis in row.axes for key in axis.keys}
    configs = {row: _comparable(experiment) for row, experiment in rows.items()}
    for key in dict.fromkeys(key for config in configs.values() for key in config):
        values = {row: config.get(key) for row, config in configs.items()}
        above = f"{key.rpartition('.')[0]}.name"  # components differ in their parameters
        names = {config.get(above) for config in configs.values()}
        alike = len(set(map(repr, values.values()))) == 1
        if not alike and key not in searched and (key == above or len(names) == 1):
            shown = {row: show_value(value) for row, value in values.items()}
            yield f"Rows differ in {key} ({_join_by_text(shown)})"


def _searches(plan: StudyPlan, rows: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield keys that some rows search and others keep fixed or search over other values."""
    spaces = {row: _search_texts(plan, row) for row in rows}
    configs = {row: _comparable(experiment) for row, experiment in rows.items()}
    for key in dict.fromkeys(key for space in spaces.values() for key in space):
        texts = {
            row: spaces[row].get(key) or f"held at {show_value(config[key])}"
            for row, config in configs.items()
            if key in config
        }
        if len(set(texts.values())) > 1:
            yield f"Rows search {key} differently ({_join_by_text(texts)})"


def _work(cells: Mapping[Place, CellResult]) -> Iterator[str]:
    """Yield kinds of work (steps, images, bytes, seconds) that rows did unequally.

    Counts are means over the reported seeds whose work was counted. With several columns, each
    row's largest multiple of the median is named.
    """
    runs = [result.measured for cell in cells.values() for result in cell.seeds if result.measured]
    uncounted = sum(run.client_work is None for run in runs)
    if 0 < uncounted < len(runs):
        yield (
            f"Steps, images and trained parameters of {uncounted} of {len(runs)} reported runs "
            "were not counted; an earlier version made these runs"
        )
    counts = {place: _means(cell) for place, cell in cells.items()}
    for fact in dict.fromkeys(fact for means in counts.values() for fact in means):
        largest, differs = defaultdict[str, float](float), False
        for column in dict.fromkeys(place.column for place in cells):
            of_rows = {
                place.row: means[fact]
                for place, means in counts.items()
                if place.column == column and fact in means
            }
            middle = median_low([*filter(None, of_rows.values())] or [1.0])
            differs |= max(of_rows.values(), default=0) > MORE * min(of_rows.values(), default=0)
            for row, count in of_rows.items():
                largest[row] = max(largest[row], count / middle)
        if differs:
            texts = {row: f"{factor:,.1f}" if factor else "none" for row, factor in largest.items()}
            yield f"Rows differ in {fact}, as multiples of the median ({_join_by_text(texts)})"


def _means(cell: CellResult) -> dict[str, float]:
    """Return the work of a cell's reported runs by kind, as means over seeds."""
    values: dict[str, list[float]] = defaultdict(list)
    for run in (result.measured for result in cell.seeds if result.measured):
        counts = {"seconds of a run": run.seconds, "bytes sent and received": run.bytes}
        if run.client_work and run.server_work:
            counts |= {
                "optimiser steps of clients": run.client_work.steps,
                "images that clients' models read": run.client_work.images,
                "trained parameters of a client": run.client_work.parameters,
                "optimiser steps of the server": run.server_work.steps,
            }
        for fact, count in counts.items():
            values[fact].append(count)
    return {fact: fmean(counts) for fact, counts in values.items()}


def _comparable(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment's keys without those of its method."""
    return {
        key: value
        for key, value in flatten(experiment.tree()).items()
        if key not in (*NOT_COMPARED, "plugins") and not key.startswith("algorithm.")
    }


def _search_texts(plan: StudyPlan, row: str) -> dict[str, str]:
    """Return texts of a row's search space by key, without keys of its method."""
    return {
        key: _axis_text(axis, key)
        for axis in plan.rows[row].axes
        for key in axis.keys
        if not key.startswith("algorithm.")
    }


def _axis_text(axis: Axis, key: str) -> str:
    if not axis.is_listed:
        return f"{axis.distribution} {' to '.join(map(show_value, axis.values))}"
    return ", ".join(dict.fromkeys(show_value(config[key]) for config in axis.configs))


def _join_by_text(texts: Mapping[str, str]) -> str:
    """Join rows with equal texts, the most common text last: "base: 4; else 16"."""
    rows: dict[str, list[str]] = defaultdict(list)
    for row, text in texts.items():
        rows[text].append(row)
    *rare, commonest = sorted(rows, key=lambda text: len(rows[text]))
    return "; ".join([*(f"{', '.join(rows[text])}: {text}" for text in rare), f"else {commonest}"])
