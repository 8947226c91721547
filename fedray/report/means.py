"""Methods by data sets, with the mean over data sets, and what is computed of means."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from fedray.records import HEADLINE, Metric
from fedray.report.cells import NOTHING, cell, pretty
from fedray.report.compared import Compared
from fedray.report.runs import Group, Stat, differing, how_chosen, show
from fedray.report.section import Section

Column = tuple[tuple[str, str], ...]
OfMeans = Callable[[Mapping[str, float]], float]


def _hm(means: Mapping[str, float]) -> float:
    return statistics.harmonic_mean([means["accuracy_base"], means["accuracy_novel"]])


OF_MEANS: Mapping[str, tuple[OfMeans, tuple[str, ...]]] = MappingProxyType(
    {
        "accuracy_hm": (_hm, ("accuracy_base", "accuracy_novel")),
        "accuracy_cm": (
            lambda means: (means[HEADLINE] + _hm(means)) / 2,
            (HEADLINE, "accuracy_base", "accuracy_novel"),
        ),
    }
)
"""Metrics that papers also compute of the means over data sets (FedMGP, Table 1): how, of which."""


def mean_sections(found: Compared) -> list[Section]:
    """A table of methods by data sets for each metric; nothing where there is one data set."""
    columns = {_column(member): None for member in found.groups}
    if len({member.runs[0].run.info.data_sha256 for member in found.groups}) < 2:
        return []
    rows: dict[str, dict[Column, Group]] = {}
    for member in found.groups:
        rows.setdefault(_row(member, found.groups), {})[_column(member)] = member
    return [_section(found, metric, rows, list(columns)) for metric in found.metrics]


def _section(
    found: Compared,
    metric: Metric,
    rows: Mapping[str, Mapping[Column, Group]],
    columns: Sequence[Column],
) -> Section:
    composed = OF_MEANS.get(metric.name)
    header = ["method", *(_title(column, columns) for column in columns), "mean"]
    header += ["of means"] if composed else []
    texts = []
    for label, members in rows.items():
        cells = [members[c].stat(metric.name, found.at) if c in members else None for c in columns]
        whole = [members[c] for c in columns] if len(members) == len(columns) else []
        over = over_data_sets(whole, metric.name, found)
        line = [label, *(cell(stat, metric) for stat in (*cells, over))]
        if composed:
            line.append(cell(_of_means(whole, composed, found), metric))
        texts.append(line)
    below = (
        f"{pretty(metric)}, {how_chosen(found.groups, found.at)}. Mean: over data sets, seed by "
        f"seed, then over seeds, ± standard deviation; {NOTHING} where a data set is missing."
    )
    if composed:
        below += f" Of means: computed of the means of {', '.join(composed[1])}."
    return Section(f"Over data sets: {pretty(metric)}", (), header, texts, [below])


def over_data_sets(members: Sequence[Group], metric: str, found: Compared) -> Stat | None:
    """The mean over data sets, over the seeds that every one of them has; None without any."""
    values = [member.by_seed(metric, found.at) for member in members]
    seeds = set.intersection(*map(set, values)) if values else set()
    if not seeds:
        return None
    return Stat.of([statistics.fmean(each[seed] for each in values) for seed in sorted(seeds)])


def _of_means(
    members: Sequence[Group], composed: tuple[OfMeans, tuple[str, ...]], found: Compared
) -> Stat | None:
    """A metric computed of the means over data sets, seed by seed, then the mean over seeds."""
    compute, parts = composed
    values = {part: [member.by_seed(part, found.at) for member in members] for part in parts}
    every = [set(each) for part in values.values() for each in part]
    seeds = set.intersection(*every) if every else set()
    if not seeds:
        return None
    return Stat.of(
        [
            compute(
                {part: statistics.fmean(v[seed] for v in each) for part, each in values.items()}
            )
            for seed in sorted(seeds)
        ]
    )


def _column(member: Group) -> Column:
    """What makes a data set another one: its name, its keys and its content."""
    keys = {key: show(value) for key, value in member.keys.items() if _of_data(key)}
    content = (member.runs[0].run.info.data_sha256 or "?")[:12]
    return (("", member.data), *sorted(keys.items()), ("data", content))


def _of_data(key: str) -> bool:
    return key.startswith("data.") and key not in ("data.source.name", "data.root")


def _title(column: Column, columns: Sequence[Column]) -> str:
    """The data's name, and what else tells it from the others of that name."""
    name, *keys = column
    alike = [dict(other) for other in columns if other[0] == name]
    telling = [
        f"{key.rsplit('.', 1)[-1]}={value}"
        for key, value in keys
        if len({other.get(key) for other in alike}) > 1
    ]
    if len(telling) > 1:  # what has other keys has other content
        telling = [each for each in telling if not each.startswith("data=")]
    return " ".join([name[1], *telling])


def _row(member: Group, groups: Sequence[Group]) -> str:
    """What a method is called in all its data sets: its label without what the data says."""
    words = [word for word in member.label.split(" ") if not _says_data(word, groups)]
    return " ".join(words)


def _says_data(word: str, groups: Sequence[Group]) -> bool:
    """Whether a word of a label is about the data alone: labels say what differs."""
    key, sign, _ = word.partition("=")
    if not sign:
        return False
    keys = differing(groups)
    found = {name for name in keys if name == key or name.endswith(f".{key}")} or {key}
    return key == "data" or all(name.startswith("data.") for name in found)
