"""A sweep's trials as lines, CSV and figure, and the best configuration as a command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from fedray.compare.labels import show_value
from fedray.compare.paired import Interval
from fedray.config import read_plugins
from fedray.files import write_rows
from fedray.records import Metric
from fedray.render.page import Section
from fedray.render.sweep import TrialLine, trials_section
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.seeds import seed_folders
from fedray.sweep.spec import Config, SweepPlan


def table(ledger: Ledger) -> Section:
    """Return all trials as a section, the best marked with a star."""
    plan, best = ledger.plan, ledger.best
    lines = [_line(trial, plan, is_best=trial is best) for trial in ledger.ordered]
    metric = declared(ledger, plan.metric)
    return trials_section(lines, plan.keys, metric, validates=plan.objective != plan.metric)


def _line(trial: Trial, plan: SweepPlan, *, is_best: bool) -> TrialLine:
    failed = trial.status == "failed"
    return TrialLine(
        number=trial.number,
        config=trial.config,
        state="failed" if failed else "" if trial.is_over else "not finished",
        reason=str(trial.reason) if failed else None,
        objective=_interval(trial.objective, trial.std, plan),
        test=_interval(trial.test, trial.test_std, plan),
        round=trial.when,
        rounds=trial.last_round,
        bytes=trial.bytes,
        startup_seconds=trial.startup_seconds,
        seconds=trial.seconds,
        is_best=is_best,
    )


def _interval(mean: float | None, std: float, plan: SweepPlan) -> Interval | None:
    return None if mean is None else Interval.of(mean, std, len(plan.seeds))


def best_command(plan: SweepPlan, config: Mapping[str, Any]) -> str:
    """Return the command that runs one configuration alone, with the first seed."""
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
    """Write the trials with all that is known of each."""
    plan = ledger.plan
    names = [field.name for field in fields(Trial) if field.name not in ("number", "config")]
    rows: list[list[Any]] = [["trial", *plan.keys, *names]]
    for trial in ledger.ordered:
        swept = [trial.config[key] for key in plan.keys]
        rows.append([trial.number, *swept, *(getattr(trial, name) for name in names)])
    write_rows(path, rows)


def draw(ledger: Ledger, path: Path) -> None:
    """Draw the metric on the test, in the chosen round, against what was swept."""
    from fedray.render.figures import Row, figure_sweep

    plan = ledger.plan
    rows = [
        Row(
            by_axis(plan, trial.config),
            Interval.of(trial.test, trial.test_std, len(plan.seeds)),
            None if plan.select == "nothing" else trial.objective,
        )
        for trial in ledger.through
        if trial.test is not None
    ]
    when = f"round {plan.how}" if plan.at == "best" else "last round"
    title = f"{plan.sweep} [{plan.scale} scale], {when}"
    axes = [axis.key for axis in plan.axes]
    metric = replace(declared(ledger, plan.metric), direction=plan.mode)
    figure_sweep(rows, axes, path, metric, title=title)


def declared(ledger: Ledger, name: str) -> Metric:
    """Return a metric as a finished trial's run declares it; a share if there is none."""
    for trial in ledger.through[:1]:
        first, *_ = seed_folders(ledger.home / trial.name, ledger.plan.seeds)
        if first.has_result:
            return first.read().info.metric(name)
    return Metric(name)


def by_axis(plan: SweepPlan, config: Config) -> dict[str, Any]:
    """Return the configuration with keys that vary together as one key with one text."""
    values = {axis.key: [config[key] for key in axis.keys] for axis in plan.axes}
    return {
        key: several[0]
        if len(several) == 1 and not isinstance(several[0], Mapping)
        else ", ".join(map(show_value, several))
        for key, several in values.items()
    }
