"""One page of everything about runs or a sweep: what came out, on what, at what cost, set how."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedray.config import flatten
from fedray.errors import UserError
from fedray.records import BEST, RunFolder, Traffic
from fedray.report.compared import Compared
from fedray.report.figures import (
    figure_clients,
    figure_counts,
    figure_kinds,
    figure_rounds,
    figure_traffic,
)
from fedray.report.runs import NOT_COMPARED, Group, LoadedRun, show
from fedray.report.section import Picture, Section
from fedray.report.sweeps import swept_figures
from fedray.report.table import sections
from fedray.units import size_of, time_of

MOST_PARTITIONS = 3
"""Different partitions that are drawn."""
ALSO_DRAWN = ("train_loss",)
"""Drawn beside what was asked for, where it was measured."""


def page(found: Compared, folders: Sequence[Path]) -> list[Section]:
    """The page's parts.

    Args:
        found: the runs.
        folders: as they were given; a sweep's says what it answers.
    """
    tables = sections(found)
    warnings = Section("Before you compare", items=[f"{text}." for text in found.warnings])
    return [
        _head(found, folders),
        *tables,
        *([warnings] if found.warnings else []),
        _curves(found),
        *_swept(found),
        *_clients(found),
        *_traffic(found),
        *_partitions(found.groups),
        *_settings(found.groups),
        _origin(found.groups),
    ]


def _head(found: Compared, folders: Sequence[Path]) -> Section:
    """What this is, and what came out in a sentence."""
    groups, best = found.groups, found.groups[0]
    names = sorted({member.data for member in groups})
    runs = sum(len(member.runs) for member in groups)
    question = next((asked for folder in folders if (asked := _question(folder))), "")
    title = f"{best.label} on {names[0]}" if len(groups) == 1 else f"{len(groups)} configurations"
    if len(groups) > 1:
        title += f" on {', '.join(names)}"
    seeds = sorted({seed for member in groups for seed in member.seeds})
    text = [f"{runs} run(s), seed(s) {', '.join(map(str, seeds))}."]
    run = best.runs[0].run
    summary = run.best
    if len(groups) == 1 and runs == 1 and summary is not None:
        text.append(
            f"Local accuracy **{100 * summary.local_accuracy:.2f} %** in round {summary.round} "
            f"({BEST[run.info.select]}), {run.done} of {run.info.planned} rounds."
        )
    return Section(title, [*([question] if question else []), *text])


def _question(folder: Path) -> str:
    """What the sweep in a folder answers; "" where there is none."""
    try:
        tree = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
        return str(tree["plan"]["answers"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


# --- figures -------------------------------------------------------------------------------------


def _drawn(what: str, draw: Callable[[Path], None]) -> Picture:
    """A figure that a function draws into a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        draw(path)
        return Picture(what, path.read_bytes(), "svg")


def _curves(found: Compared) -> Section:
    measured = {name for member in found.groups for name in _measured(member)}
    extra = [member for member in ALSO_DRAWN if member in measured]
    info = found.groups[0].runs[0].run.info
    names = {metric.name for metric in found.metrics}
    metrics = [*found.metrics, *(info.metric(name) for name in extra if name not in names)]
    by_round = _drawn("by round", lambda path: figure_rounds(found.groups, metrics, path))
    by_bytes = _drawn("by traffic", lambda path: figure_traffic(found.groups, found.metric, path))
    return Section("Curves", pictures=[by_round, by_bytes])


def _measured(member: Group) -> set[str]:
    return {name for done in member.runs[0].run.rounds for name in done.metrics}


def _swept(found: Compared) -> list[Section]:
    with tempfile.TemporaryDirectory() as folder:
        files = swept_figures(found.groups, Path(folder), found.metric, found.at, "svg")
        pictures = [Picture(path.stem, path.read_bytes(), "svg") for path in files]
    return [Section("What was swept", pictures=pictures)] if pictures else []


def _clients(found: Compared) -> list[Section]:
    """Every client's accuracy, of the first seed, in the round that is reported."""
    values: dict[str, Sequence[float]] = {}
    rows = []
    for member in found.groups:
        round_, accuracies = _per_client(member.runs[0], found)
        if accuracies:
            values[member.label] = list(accuracies.values())
            numbers = [100 * value for value in accuracies.values()]
            shown = [min(numbers), sum(numbers) / len(numbers), max(numbers)]
            seed = str(member.runs[0].seed)
            rows.append([member.label, seed, str(round_), *(f"{n:.1f}" for n in shown)])
    if not values:
        return []
    metric = found.groups[0].runs[0].run.info.metric("local_accuracy")
    picture = _drawn("by client", lambda path: figure_clients(values, metric, path))
    header = ["method", "seed", "round", "lowest (%)", "mean (%)", "highest (%)"]
    return [Section("Clients", [], header, rows, pictures=[picture])]


def _per_client(loaded: LoadedRun, found: Compared) -> tuple[int, Mapping[int, float]]:
    """The round that is reported and each client's accuracy in it; or in the last that has it."""
    run = loaded.run
    best = run.best_round(found.metric.name) if found.at == "best" else None
    evaluated = {done.round: done.per_client for done in run.rounds if done.per_client}
    round_ = best if best in evaluated else max(evaluated, default=0)
    return round_, evaluated.get(round_, {})


def _traffic(found: Compared) -> list[Section]:
    """Bytes per round by kind and direction, of the first seed; who sent the same is one row."""
    same: dict[tuple[tuple[str, float], ...], list[Group]] = {}
    for member in found.groups:
        same.setdefault(tuple(_sent(member.runs[0]).items()), []).append(member)
    sent = {_names(members): dict(sizes) for sizes, members in same.items()}
    rows = [
        [f"{label}: {what}", size_of(size)]
        for label, sizes in sent.items()
        for what, size in sizes.items()
    ]
    if not rows:
        return [Section("Traffic by kind", ["Nothing was sent."])]
    in_mb = {who: {what: size / 1e6 for what, size in each.items()} for who, each in sent.items()}
    picture = _drawn("traffic by kind", lambda path: figure_kinds(in_mb, path))
    return [Section("Traffic by kind", [], ["", "per round"], rows, pictures=[picture])]


def _sent(loaded: LoadedRun) -> dict[str, float]:
    """Bytes of a round, the mean, by kind and direction: "weights up"."""
    rounds = [done for done in loaded.run.rounds if done.round > 0]
    up = Traffic.total(done.up for done in rounds)
    down = Traffic.total(done.down for done in rounds)
    return {
        f"{kind} {direction}": size / len(rounds)
        for direction, traffic in (("up", up), ("down", down))
        for kind, size in traffic.bytes.items()
    }


def _names(members: Sequence[Group]) -> str:
    """Whoever it is: "fedtsp", or "fedtsp lambda=1 and 3 others"."""
    others = len(members) - 1
    return members[0].label + (f" and {others} other(s)" if others else "")


def _partitions(groups: Sequence[Group]) -> list[Section]:
    """How many images of each class each client holds, for each partition once."""
    pictures: dict[str, Picture] = {}
    for loaded in (loaded for member in groups for loaded in member.runs):
        sha = loaded.run.info.partition_sha256 or "?"
        histogram, names = _histogram(loaded)
        if sha in pictures or not histogram or len(pictures) == MOST_PARTITIONS:
            continue
        title = f"images by class and client, seed {loaded.seed}"
        pictures[sha] = _drawn(title, _heat_map(histogram, names, title))
    return [Section("Partition", pictures=list(pictures.values()))] if pictures else []


def _heat_map(
    histogram: Sequence[Sequence[float]], names: Sequence[str], title: str
) -> Callable[[Path], None]:
    """What draws classes from top to bottom and clients from left to right."""
    by_class = [list(column) for column in zip(*histogram, strict=True)]
    return lambda path: figure_counts(by_class, names, title, path)


def _histogram(loaded: LoadedRun) -> tuple[list[list[float]], list[str]]:
    """Images [clients, classes] and the classes' names; empty where no file says so."""
    folder = RunFolder(loaded.folder)
    try:
        tree = json.loads(folder.partition.read_text(encoding="utf-8"))
        return [list(map(float, row)) for row in tree["histogram"]], folder.class_names()
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return [], []


# --- settings ------------------------------------------------------------------------------------


def _settings(groups: Sequence[Group]) -> list[Section]:
    """The keys in which the runs differ, and those that all share."""
    configs = [flatten(member.runs[0].run.info.config) for member in groups]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    keys = [key for key in keys if key not in NOT_COMPARED and not key.endswith(".text")]
    shared = [key for key in keys if len({_cell(config, key) for config in configs}) == 1]
    own = [key for key in keys if key not in shared]
    parts = []
    if own:
        header = ["key", *(member.label for member in groups)]
        rows = [[key, *(_cell(config, key) for config in configs)] for key in own]
        parts.append(Section("Settings that differ", (), header, rows, folded=len(own) > 12))
    rows = [[key, _cell(configs[0], key)] for key in shared]
    return [*parts, Section("Settings of all", (), ["key", "value"], rows, folded=True)]


def _cell(config: Mapping[str, Any], key: str) -> str:
    return show(config[key])[:80] if key in config else ""


def _origin(groups: Iterable[Group]) -> Section:
    """Versions, hashes, times and folders of the runs."""
    header = ["method", "seed", "rounds", "time", "commit", "images", "partition", "identity"]
    rows = []
    for member in groups:
        for loaded in member.runs:
            run, info = loaded.run, loaded.run.info
            hashes = (info.data_sha256, info.partition_sha256, info.identity)
            rows.append(
                [
                    member.label,
                    str(loaded.seed),
                    str(max(run.done, 0)),
                    time_of(run.costs.wall_seconds),
                    info.versions.get("git", "?"),
                    *((sha or "?")[:12] for sha in hashes),
                ]
            )
    packages = Counter(
        f"{name} {version}"
        for member in groups
        for loaded in member.runs
        for name, version in loaded.run.info.versions.items()
        if name != "git"
    )
    return Section("Where the numbers are from", [", ".join(packages)], header, rows, folded=True)
