"""Caveats printed below reports: unequal files, environments, rounds, data and settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fedray.results.blocks import Report, explain_blocks, method_differences
from fedray.results.frame import RunGroup
from fedray.results.labels import text_of


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


def _files(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield input files with equal names but different contents."""
    named: dict[tuple[str, str], dict[str | None, RunGroup]] = defaultdict(dict)
    for member in groups:
        for key, content in member.runs[0].run.info.files_sha256.items():
            named[key, text_of(member.keys.get(key))].setdefault(content, member)
    for (key, _), by_content in named.items():
        first, *further = by_content.values()
        yield from (f"{key} differs: {first.label} and {other.label}" for other in further)


def _environments(groups: Sequence[RunGroup]) -> Iterator[str]:
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


def _unfinished_runs(groups: Sequence[RunGroup]) -> Iterator[str]:
    for member in groups:
        for loaded in member.runs:
            rounds = f"{max(loaded.run.done, 0)} of {loaded.run.info.planned}"
            if not loaded.run.is_finished:
                yield f"not finished: {member.label} seed {loaded.seed} has {rounds} rounds"
