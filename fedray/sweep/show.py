"""What a sweep ends with: the table of trials, the best configuration as a command, a CSV."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from fedray.config import read_plugins
from fedray.files import write_rows
from fedray.records import Metric
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.seeds import seed_folders
from fedray.sweep.spec import Config, SweepPlan, short_names, show_value
from fedray.units import size_of, time_of

WIDTH = 80
CUT = 14
"""Characters of a swept key or value in the table."""


def table(ledger: Ledger) -> str:
    """All trials in at most 80 columns, the best marked with a star.

    Columns that do not fit are left out, the least telling first.
    """
    plan = ledger.plan
    names = short_names(plan.keys)
    columns: dict[str, list[str]] = {"trial": [], **{name: [] for name in names.values()}}
    results = [*_numbers(plan), "round", "rounds", "traffic", "start-up", "time"]
    columns |= {name: [] for name in results}
    best = ledger.best
    for trial in ledger.ordered:
        columns["trial"].append(f"{'* ' if trial is best else ''}{trial.number}")
        for key, name in names.items():
            columns[name].append(show_value(trial.config[key])[:CUT])
        for name, text in _results(trial, plan).items():
            columns[name].append(text)
    for victim in ("start-up", "traffic", "rounds", "time", "+- test", "round"):
        if _width(columns) > WIDTH:
            columns.pop(victim)
    return _layout(columns, ledger, list(names.values()))


def _numbers(plan: SweepPlan) -> list[str]:
    """The columns of what was measured: what chooses, then the test where that is another."""
    spread = ["+-"] if len(plan.seeds) > 1 else []
    if plan.objective == plan.metric:
        return [plan.metric, *spread]
    return ["validation", *spread, "test", *("+- test" for _ in spread)]


def _results(trial: Trial, plan: SweepPlan) -> dict[str, str]:
    known = trial.objective is not None
    start = trial.startup_seconds
    cells = {
        "round": trial.when,
        "rounds": "" if trial.last_round is None else str(trial.last_round),
        "traffic": size_of(trial.bytes),
        "start-up": "" if start is None else time_of(start),
        "time": time_of(trial.seconds),
    }
    numbers = [trial.objective, *([trial.std] if len(plan.seeds) > 1 else [])]
    if plan.objective != plan.metric:
        numbers += [trial.test, *([trial.test_std] if len(plan.seeds) > 1 else [])]
    for name, number in zip(_numbers(plan), numbers, strict=True):
        cells[name] = f"{number:.4f}" if known and number is not None else ""
    return cells


def _widths(columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {
        name: max(len(text) for text in (name[:CUT], *cells)) for name, cells in columns.items()
    }


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(_widths(columns).values()) + 2 * (len(columns) - 1)


def _layout(columns: Mapping[str, Sequence[str]], ledger: Ledger, swept: Sequence[str]) -> str:
    widths = _widths(columns)
    lines = ["  ".join(name[:CUT].rjust(widths[name]) for name in columns)]
    for index, trial in enumerate(ledger.ordered):
        cells = {name: texts[index].rjust(widths[name]) for name, texts in columns.items()}
        if trial.status == "failed":
            left = "  ".join(cells[name] for name in ("trial", *swept))
            line = f"{left}  failed: {trial.reason}"
        elif not trial.is_over:
            line = "  ".join([*(cells[name] for name in ("trial", *swept)), "not finished"])
        else:
            line = "  ".join(cells.values())
        line = " ".join(line.splitlines())
        lines.append(line if len(line) <= WIDTH else line[: WIDTH - 3] + "...")
    return "\n".join(lines)


def reasons(ledger: Ledger) -> list[str]:
    """Why trials failed, whole, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for trial in ledger.ordered:
        if trial.status == "failed":
            by_reason.setdefault(str(trial.reason), []).append(str(trial.number))
    return [f"trial {', '.join(who)} failed: {reason}" for reason, who in by_reason.items()]


def best_command(plan: SweepPlan, config: Mapping[str, Any]) -> str:
    """The command that runs one configuration alone, with the first seed."""
    pairs = {**plan.set, **config}
    if plan.seeds[0] != plan.base.get("seed", 0):
        pairs["seed"] = plan.seeds[0]
    words = [shlex.quote(f"{key}={_flow(value)}") for key, value in pairs.items()]
    for plugin in read_plugins(plan.base.get("plugins", ())):
        words += ["--plugin", shlex.quote(plugin.given)]
    return " ".join(["python -m fedray.run", shlex.quote(plan.experiment), *words])


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def write_csv(ledger: Ledger, path: Path) -> None:
    """The table with all its columns, for other programs."""
    plan = ledger.plan
    names = [field.name for field in fields(Trial) if field.name not in ("number", "config")]
    rows: list[list[Any]] = [["trial", *plan.keys, *names]]
    for trial in ledger.ordered:
        swept = [trial.config[key] for key in plan.keys]
        rows.append([trial.number, *swept, *(getattr(trial, name) for name in names)])
    write_rows(path, rows)


def draw(ledger: Ledger, path: Path) -> None:
    """The metric against what was swept, with its spread over seeds; one panel per axis.

    On the test, in the round that was chosen.
    """
    from fedray.report import Row, figure_sweep

    plan = ledger.plan

    def worth(trial: Trial) -> float | None:
        return None if plan.select == "nothing" else trial.objective

    rows = [
        Row(by_axis(plan, trial.config), trial.test, trial.test_std, len(plan.seeds), worth(trial))
        for trial in ledger.through
        if trial.test is not None
    ]
    when = f"round {plan.how}" if plan.at == "best" else "last round"
    title = f"{plan.sweep} [{plan.scale} scale], {when}"
    axes = [axis.key for axis in plan.axes]
    figure_sweep(rows, axes, path, _metric(ledger), title=title)


def _metric(ledger: Ledger) -> Metric:
    """The metric as a trial's run declares it, in the direction of the plan."""
    plan = ledger.plan
    assert ledger.through, "no trial came through"
    first, *_ = seed_folders(ledger.home / ledger.through[0].name, plan.seeds)
    return replace(first.read().info.metric(plan.metric), direction=plan.mode)


def by_axis(plan: SweepPlan, config: Config) -> dict[str, Any]:
    """The configuration with keys that vary together as one, whose value is all of theirs.

    A component's value is its name with its parameters.
    """
    values = {axis.key: [config[key] for key in axis.keys] for axis in plan.axes}
    return {
        key: several[0]
        if len(several) == 1 and not isinstance(several[0], Mapping)
        else ", ".join(map(show_value, several))
        for key, several in values.items()
    }
