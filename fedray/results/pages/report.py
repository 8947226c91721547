"""The page of `fedray report`: tables, comparisons, curves, costs and settings; and its files."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

from fedray.base.units import time_of
from fedray.config import flatten
from fedray.data.plot import plot_partition
from fedray.results.blocks import Report
from fedray.results.caveats import report_caveats
from fedray.results.frame import (
    NOT_COMPARED,
    At,
    LoadedRun,
    RunGroup,
    differing_keys,
    numbers_frame,
    selection_label,
)
from fedray.results.labels import show_value
from fedray.results.means import OF_MEANS, of_means, over_columns
from fedray.results.pages.cells import (
    NOTHING,
    SPREAD,
    cell,
    in_megabytes,
    metric_name,
    p_text,
    short_name,
    signed,
)
from fedray.results.pages.figures import (
    figure_clients,
    figure_matrix,
    figure_rounds,
    figure_traffic,
)
from fedray.results.pages.page import Picture, Section, latex_table
from fedray.results.paired import ALPHA
from fedray.storage.files import file_name, read_regular, replace_whole, write_rows
from fedray.storage.metric import BEST, Metric
from fedray.storage.run_folder import RunFolder

MOST_PARTITIONS = 3
"""Maximal number of partitions that are shown."""
MOST_HEAT_MAPS = 12
"""Maximal number of matrices that are drawn."""
ALSO_DRAWN = ("train_loss",)
"""Further metrics that are drawn if measured."""
CHOSEN = {
    "final": "last round",
    "best": "best round",
    "best on validation": "round chosen on validation images",
    "best on test": "round chosen on test images",
}
"""Texts for captions, by `selection_label`."""
DIFFERENCE = ("difference_to", "difference_at", "difference_mean", "difference_half", "p_holm")


def report_page(report: Report, folders: Sequence[Path]) -> list[Section]:
    """Return the whole page.

    Args:
        report: the runs.
        folders: the folders of the command line; a sweep's folder provides the question.
    """
    return [
        _head(report, folders),
        *sections(report),
        *caveats(report),
        _curves(report),
        *_clients(report),
        *_partitions(report.groups),
        *_settings(report.groups),
        _origin(report.groups),
    ]


def caveats(report: Report) -> list[Section]:
    """Return a section with the caveats; empty without caveats."""
    notes = report_caveats(report)
    return [Section("Before you compare", items=[f"{note}." for note in notes])] if notes else []


def sections(report: Report) -> list[Section]:
    """Return the tables and comparisons, one for each set of comparable groups."""
    several = len(report.tables) > 1
    parts = []
    for number, groups in enumerate(report.tables, 1):
        title = f"Comparable runs {number}: {groups[0].data}" if several else ""
        parts.append(Section(title, (), *_cells(report, groups), [_caption(report, groups)]))
        if len(report.blocks) == len(report.tables) and len(groups) > 1:
            parts.append(_differences(report, groups))
    return [*parts, *_data_sets(report)]


# --- tables ---------------------------------------------------------------------------------------


def _cells(report: Report, groups: Sequence[RunGroup]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table."""
    first, *further = report.metrics
    header = ["method", "n", selection_label(groups, "best"), "final"]
    header += [*(short_name(metric) for metric in further), "MB up", "MB down"]
    rows = [
        [
            member.label,
            str(len(member.runs)),
            _best_cell(member, first, groups),
            _mean(member, first, "final"),
            *(_mean(member, metric, report.at) for metric in further),
            in_megabytes(member.per_round("up")),
            in_megabytes(member.per_round("down")),
        ]
        for member in groups
    ]
    return header, rows


def _best_cell(member: RunGroup, metric: Metric, groups: Sequence[RunGroup]) -> str:
    """Return the best value, with the images that selected it if these differ between groups."""
    text = _mean(member, metric, "best")
    mixed = selection_label(groups, "best") == "best" and text != NOTHING
    return f"{text} ({BEST[member.select]})" if mixed else text


def _mean(member: RunGroup, metric: Metric, at: At) -> str:
    """Return the mean over seeds, with the number of seeds if some lack the metric."""
    interval = member.interval(metric.name, at)
    text = cell(interval, metric)
    whole = interval is None or interval.n == len(member.runs)
    return text if interval is None or whole else f"{text} (n = {interval.n})"


def _caption(report: Report, groups: Sequence[RunGroup]) -> str:
    first, *further = report.metrics
    scales = " and ".join(sorted({str(member.keys.get("scale", "?")) for member in groups}))
    many = any(len(member.runs) > 1 for member in groups)
    spread = f", mean {SPREAD} n seeds" if many else ""
    round_ = "in the same round" if report.at == "best" else "final"
    further_text = "".join(f"; {metric_name(metric)}, {round_}" for metric in further)
    chosen = report.at == "best" and all(member.select == "validation" for member in groups)
    order = "; the best on validation first" if chosen and len(groups) > 1 else ""
    numbers = f"{metric_name(first)}{spread} [{scales} scale]{further_text}"
    return f"{numbers}; MB of all clients per round{order}."


def _differences(report: Report, groups: Sequence[RunGroup]) -> Section:
    """Return the comparison with the base: seeds, difference, corrected p and reading."""
    metric, base = report.metric, report.base_of(groups)
    differences = report.differences(groups)
    rows = []
    for difference in differences:
        interval = difference.comparison.interval
        count = "0" if interval is None else str(interval.n)
        text = NOTHING if interval is None else signed(interval, metric)
        rows.append(
            [difference.member.label, count, text, p_text(difference.p), difference.reading]
        )
    below = (
        f"{metric_name(metric)}, {selection_label(groups, report.at)}: difference to {base.label}, "
        f"paired by seed, mean {SPREAD} n seeds"
    )
    if any(difference.p is not None for difference in differences):
        below += (
            f"; p of the two-sided t-test, corrected for {len(rows)} comparison(s) by Holm; within "
            f"the spread where it is above {ALPHA:g}"
        )
    return Section(
        "", (), ["method", "n", "difference", "p (Holm)", "reading"], rows, [f"{below}."]
    )


def _data_sets(report: Report) -> list[Section]:
    """Return one table of methods by data sets per metric, if there are several data sets."""
    if len({member.runs[0].run.info.data_sha256 for member in report.groups}) < 2:
        return []
    keys = {member.label: _data_keys(member) for member in report.groups}
    titles = {
        label: _data_title(data_keys, list(keys.values())) for label, data_keys in keys.items()
    }
    differ = differing_keys([member.keys for member in report.groups])
    rows = {member.label: _without_data(member, differ) for member in report.groups}
    return [_data_table(report, metric, rows, titles) for metric in report.metrics]


def _data_table(
    report: Report, metric: Metric, rows: Mapping[str, str], titles: Mapping[str, str]
) -> Section:
    groups = {(rows[member.label], titles[member.label]): member for member in report.groups}
    columns = list(dict.fromkeys(titles.values()))
    parts = OF_MEANS[metric.name][1] if metric.name in OF_MEANS else ()
    numbers = numbers_frame(report.groups, [*dict.fromkeys([metric.name, *parts])])
    numbers["row"], numbers["column"] = numbers.label.map(rows), numbers.label.map(titles)
    index = ["row", "column", "seed"]
    numbers = numbers.drop_duplicates([*index, "metric"])
    wide = numbers.pivot(index=index, columns="metric", values=report.at).reset_index()
    means = [over_columns(wide, metric.name, columns)]
    means += [of_means(wide, metric.name, columns)] if parts else []
    texts = []
    for row in dict.fromkeys(rows.values()):
        members = [groups.get((row, column)) for column in columns]
        values = [None if m is None else m.interval(metric.name, report.at) for m in members]
        texts.append([row, *(cell(v, metric) for v in (*values, *(m.get(row) for m in means)))])
    below = (
        f"{metric_name(metric)}, {selection_label(report.groups, report.at)}. Mean: over data "
        f"sets, seed by seed, then over seeds, {SPREAD} seeds; {NOTHING} where one is missing."
    )
    if parts:
        below += f" Of means: computed of the means of {', '.join(parts)}."
    header = ["method", *columns, "mean", *(["of means"] if parts else [])]
    return Section(f"Over data sets: {metric_name(metric)}", (), header, texts, [below])


def _data_keys(member: RunGroup) -> dict[str, str]:
    """Return the properties that identify a data set: its name, keys and content."""
    left_out = ("data.source.name", "data.root")
    keys = {
        key: show_value(value)
        for key, value in sorted(member.keys.items())
        if key.startswith("data.") and key not in left_out
    }
    content = (member.runs[0].run.info.data_sha256 or "?")[:12]
    return {"": member.data, **keys, "data": content}


def _data_title(keys: Mapping[str, str], every: Sequence[Mapping[str, str]]) -> str:
    """Return a data set's name, with the keys that distinguish it from others of that name."""
    same_name = [other for other in every if other[""] == keys[""]]
    distinct = [key for key in keys if len({other.get(key) for other in same_name}) > 1]
    if len(distinct) > 1:  # the content hash is only needed if no other key differs
        distinct = [key for key in distinct if key != "data"]
    return " ".join([keys[""], *(f"{key.rsplit('.', 1)[-1]}={keys[key]}" for key in distinct)])


def _without_data(member: RunGroup, differ: Sequence[str]) -> str:
    """Return a group's label without the keys that only describe the data; values may have blanks.

    Args:
        member: the group.
        differ: the keys that may be in labels.
    """
    label = member.label
    words = [
        re.escape(f"{key}={(content or '?')[:12]}")
        for key, content in member.runs[0].contents.items()
        if key.partition(".")[0] == "data"
    ]
    for key in (key for key in differ if key.startswith("data.")):
        value = show_value(member.keys[key]) if key in member.keys else "default"
        for name in (key, key.rsplit(".", 1)[-1]):
            meant = [other for other in differ if other == name or other.endswith(f".{name}")]
            if all(other.startswith("data.") for other in meant):
                words.append(re.escape(f"{name}={value}"))
    for word in words:
        label = re.sub(f" {word}(?= |$)", "", label)
    return label


# --- files ----------------------------------------------------------------------------------------


def report_latex(report: Report, label: str, order: Sequence[str]) -> str:
    """Return the tables as LaTeX, with titles of methods and the best values in bold.

    Args:
        report: the runs.
        label: label for references; further tables append a number.
        order: labels of the groups, in the order of the rows.
    """
    parts = []
    for number, block in enumerate(report.tables, 1):
        groups = sorted(block, key=lambda member: order.index(member.label))
        metrics = [(metric, report.at) for metric in report.metrics]
        rows = [
            [titled(member.label, member.method), *(_mean(member, m, at) for m, at in metrics)]
            for member in groups
        ]
        values = [
            [None if (i := member.interval(m.name, at)) is None else i.mean for member in groups]
            for m, at in metrics
        ]
        best = [
            (row, column)
            for column, (metric, _) in enumerate(metrics, 1)
            for row in best_rows(values[column - 1], metric)
            if all(len(member.runs) > 1 for member in groups)
        ]
        header = ["Method", *(_capital(metric_name(metric)) for metric, _ in metrics)]
        seeds = {len(member.runs) for member in groups}
        caption = f"{groups[0].data}, {CHOSEN[selection_label(groups, report.at)]}"
        if seeds != {1}:
            caption += (
                f"; mean {SPREAD} {' to '.join(map(str, sorted({min(seeds), max(seeds)})))} seeds"
            )
        name = label if number == 1 else f"{label}-{number}"
        parts.append(latex_table(header, rows, f"{_capital(caption)}.", name, best))
    return "\n".join(parts)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def best_rows(values: Sequence[float | None], metric: Metric) -> list[int]:
    """Return the indices of the best values; empty if there are fewer than two values.

    A single seed does not say which method is the best: `report_latex` asks for two.
    """
    measured = [value for value in values if value is not None]
    if len(measured) < 2:
        return []
    best = min(measured) if metric.direction == "min" else max(measured)
    return [index for index, value in enumerate(values) if value == best]


def titled(label: str, method: str) -> str:
    """Return a label with the method's name replaced by its title: FedProto for fedproto."""
    from fedray.core import algorithms

    name, _, suffix = label.partition(" ")
    if name != method or method not in algorithms.names():
        return label
    return " ".join(filter(None, [algorithms.get(method).title, suffix]))


def write_csv(report: Report, path: Path) -> None:
    """Write one line per metric and group, with the difference to the base."""
    keys = differing_keys([member.keys for member in report.groups])
    differences = {
        difference.member.label: difference
        for block in report.blocks
        for difference in report.differences(block)
    }
    rows: list[dict[str, Any]] = []
    for metric in report.metrics:
        for member in report.groups:
            row = _csv_row(member, metric, keys)
            row_difference = differences.get(member.label) if metric is report.metric else None
            if (
                row_difference is not None
                and (interval := row_difference.comparison.interval) is not None
            ):
                values = (
                    row_difference.base.label,
                    report.at,
                    interval.mean,
                    interval.half,
                    row_difference.p,
                )
                row |= zip(DIFFERENCE, ("" if v is None else v for v in values), strict=True)
            rows.append(row)
    header = list(rows[0])
    write_rows(path, [header, *(list(row.values()) for row in rows)])


def _csv_row(member: RunGroup, metric: Metric, keys: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"label": member.label, "algorithm": member.method, "data": member.data}
    row |= {key: member.keys.get(key, "") for key in keys}
    row |= {"n": len(member.runs), "seeds": " ".join(map(str, member.seeds))}
    row["metric"] = metric.name
    for at in get_args(At):
        interval = member.interval(metric.name, at)
        for what in ("mean", "half", "std"):
            row[f"{at}_{what}"] = "" if interval is None else getattr(interval, what)
    infos = [loaded.run.info for loaded in member.runs]
    return {
        **row,
        **dict.fromkeys(DIFFERENCE, ""),
        "up_bytes_per_round": member.per_round("up"),
        "down_bytes_per_round": member.per_round("down"),
        "chosen": BEST[member.select],
        "partition_sha256": " ".join(info.partition_sha256 or "?" for info in infos),
        "data_sha256": infos[0].data_sha256 or "?",
    }


def write_heat_maps(groups: Sequence[RunGroup], out: Path, kind: str) -> list[Path]:
    """Draw the matrices of each group's first seed; return the files."""
    files: list[Path] = []
    for index, member in enumerate(groups, 1):
        first = member.runs[0]
        folder = RunFolder(first.folder)
        for name, matrix in folder.read_matrices().items():
            if len(files) == MOST_HEAT_MAPS:
                print(f"only the first {MOST_HEAT_MAPS} heat maps are drawn")
                return files
            stem = f"heatmap_{index:02d}_{file_name(member.method)}_{file_name(name)}"
            files.append(out / f"{stem}.{kind}")
            title = f"{name.replace('_', ' ')}: {member.label}, seed {first.seed}"
            figure_matrix(matrix, folder.class_names(), title, files[-1])
    return files


# --- the head -------------------------------------------------------------------------------------


def _head(report: Report, folders: Sequence[Path]) -> Section:
    """Return the title, the question of a study, and a summary of the runs."""
    groups, best = report.groups, report.groups[0]
    names = sorted({member.data for member in groups})
    runs = sum(len(member.runs) for member in groups)
    question = next((answer for folder in folders if (answer := _question(folder))), "")
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
    """Return the question of the study in a folder; "" without a study."""
    try:
        tree = json.loads(read_regular(folder / "plan.json"))
        return str(tree["plan"]["answers"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


# --- figures -------------------------------------------------------------------------------------


def _drawn(what: str, draw: Callable[[Path], None]) -> Picture:
    """Return a picture of the figure that a function draws into a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        draw(path)
        return Picture(what, path.read_bytes(), "svg", f"{file_name(what)}.svg")


def _curves(report: Report) -> Section:
    first = report.groups[0].runs[0].run
    measured = {name for done in first.rounds for name in done.metrics}
    shown = {metric.name for metric in report.metrics}
    extra = [name for name in ALSO_DRAWN if name in measured - shown]
    metrics = [*report.metrics, *map(first.info.metric, extra)]
    by_round = _drawn("by round", lambda path: figure_rounds(report.groups, metrics, path))
    by_bytes = _drawn("by traffic", lambda path: figure_traffic(report.groups, report.metric, path))
    return Section("Curves", pictures=[by_round, by_bytes])


def _clients(report: Report) -> list[Section]:
    """Return the clients' accuracies in the reported round of each group's first seed."""
    values: dict[str, Sequence[float]] = {}
    rows = []
    for member in report.groups:
        round_, accuracies = _per_client(member.runs[0], report)
        if accuracies:
            values[member.label] = list(accuracies.values())
            numbers = [100 * value for value in accuracies.values()]
            shown = [min(numbers), sum(numbers) / len(numbers), max(numbers)]
            seed = str(member.runs[0].seed)
            rows.append([member.label, seed, str(round_), *(f"{n:.1f}" for n in shown)])
    if not values:
        return []
    metric = report.groups[0].runs[0].run.info.metric("local_accuracy")
    picture = _drawn("by client", lambda path: figure_clients(values, metric, path))
    header = ["method", "seed", "round", "lowest (%)", "mean (%)", "highest (%)"]
    return [Section("Clients", [], header, rows, pictures=[picture])]


def _per_client(loaded: LoadedRun, report: Report) -> tuple[int, Mapping[int, float]]:
    """Return the reported round, or the last evaluated one, with the accuracies by client."""
    run = loaded.run
    best = run.best_round(report.metric.name) if report.at == "best" else None
    evaluated = {done.round: done.per_client for done in run.rounds if done.per_client}
    round_ = best if best in evaluated else max(evaluated, default=0)
    return round_, evaluated.get(round_, {})


def _partitions(groups: Sequence[RunGroup]) -> list[Section]:
    """Return the plots of the runs' partitions."""
    pictures = [
        Picture(title, image, "png", f"partition_{number}.png")
        for number, (title, image) in enumerate(draw_partitions(groups), 1)
    ]
    return [Section("Partition", pictures=pictures)] if pictures else []


def write_partitions(groups: Sequence[RunGroup], out: Path) -> list[Path]:
    """Write the plots of the runs' partitions; return the files."""
    files = []
    for number, (_, image) in enumerate(draw_partitions(groups), 1):
        files.append(out / f"partition_{number}.png")
        replace_whole(files[-1], partial(_write, image))
    return files


def _write(image: bytes, path: Path) -> None:
    path.write_bytes(image)


def draw_partitions(groups: Sequence[RunGroup]) -> Iterator[tuple[str, bytes]]:
    """Yield title and PNG of the first distinct partitions: the images by class and client.

    Phases of evolving data stand below each other.
    """
    drawn: set[str | None] = set()
    for loaded in (loaded for member in groups for loaded in member.runs):
        folder, info = RunFolder(loaded.folder), loaded.run.info
        if info.partition_sha256 in drawn or not folder.class_names():
            continue
        if len(drawn) == MOST_PARTITIONS:
            return
        drawn.add(info.partition_sha256)
        histograms = folder.histograms()
        ends = [*list(histograms)[1:], info.planned + 1]
        spans = zip(histograms, ends, strict=True)
        titles = [f"rounds {max(first, 1)} to {end - 1}: " for first, end in spans]
        titles = titles if len(titles) > 1 else [""]
        if (join := info.config["join"])["clients"]:
            clients = info.config["data"]["clients"]
            newcomers = f"clients {clients - join['clients']} to {clients - 1}"
            titles[0] = f"{newcomers} join in round {join['round']}\n{titles[0]}"
        panels, image = dict(zip(titles, histograms.values(), strict=True)), BytesIO()
        plot_partition(panels, folder.class_names(), image)
        yield f"images by class and client, seed {loaded.seed}", image.getvalue()


# --- settings ------------------------------------------------------------------------------------


def _settings(groups: Sequence[RunGroup]) -> list[Section]:
    """Return the settings in which the runs differ, and those that are equal."""
    configs = [flatten(member.runs[0].run.info.config) for member in groups]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    keys = [key for key in keys if key not in NOT_COMPARED and not key.endswith(".text")]
    shared = [key for key in keys if len({_setting(config, key) for config in configs}) == 1]
    different = [key for key in keys if key not in shared]
    parts = []
    if different:
        header = ["key", *(member.label for member in groups)]
        rows = [[key, *(_setting(config, key) for config in configs)] for key in different]
        parts.append(Section("Settings that differ", (), header, rows))
    rows = [[key, _setting(configs[0], key)] for key in shared]
    return [*parts, Section("Settings of all", (), ["key", "value"], rows)]


def _setting(config: Mapping[str, Any], key: str) -> str:
    return show_value(config[key])[:80] if key in config else ""


def _origin(groups: Iterable[RunGroup]) -> Section:
    """Return versions, hashes, times and folders of the runs."""
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
                    info.environment.versions.get("git", "?"),
                    *((sha or "?")[:12] for sha in hashes),
                ]
            )
    packages = Counter(
        f"{name} {version}"
        for member in groups
        for loaded in member.runs
        for name, version in loaded.run.info.environment.versions.items()
        if name != "git"
    )
    return Section("Origin of the numbers", [", ".join(packages)], header, rows)
