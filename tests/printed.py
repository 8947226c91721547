"""What tests of scale `printed` share: facts of a paper against an item's resolved commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedray.cli.dry_run import PlannedRun, check_command, plan_of_command, split_command
from fedray.cli.papers import Paper, read_papers
from fedray.config import Component, Experiment
from fedray.studies.file import Kind, plan_study
from fedray.studies.plan import StudyPlan

OF_PLAN = ("seeds", "select", "metric", "row_metrics", "at", "columns")
"""Facts about a study as a whole."""


class PaperCommand(NamedTuple):
    """A command of an item.

    Attributes:
        paper: the name of the paper's file.
        item: the name of the item.
        scale: laptop, desktop, paper or printed.
        words: the command line.
    """

    paper: str
    item: str
    scale: str
    words: str


def every_command(papers: Mapping[str, Paper]) -> list[PaperCommand]:
    """Return the commands of all papers."""
    return [
        PaperCommand(name, item.item, scale, command)
        for name, paper in papers.items()
        for item in paper.items
        for scale, command in item.commands()
    ]


class Fact(NamedTuple):
    """All values at a key.

    Attributes:
        values: the values.
        place: page, section or file where the paper or its code says so.
        methods: the methods that the fact is about; empty: all.
    """

    values: set[Any]
    place: str
    methods: tuple[str, ...] = ()


Facts = Mapping[str, Fact]


def of_run(experiment: Experiment, key: str) -> Any:
    """Return the value at a key; the file name of a folder, None where a component lacks it."""
    value: Any = experiment
    for part in key.split("."):
        chosen = value.tree() if isinstance(value, Component) else {}
        value = chosen.get(part) if chosen else getattr(value, part)
    return Path(value).name if key == "data.root" and value is not None else value


def of_plan(plan: StudyPlan, key: str) -> set[Any]:
    """Return the values of a study as a whole."""
    match key:
        case "seeds":
            return {tuple(plan.report.seeds)}
        case "metric":
            return {plan.metrics[0]}
        case "row_metrics":
            return {plan.measures(row)[plan.metrics[0]] for row in plan.rows}
        case "columns":
            return set(plan.columns)
    return {getattr(plan, key)}


@cache
def runs_of(command: str) -> list[PlannedRun]:
    """Return what a command runs; several items share commands."""
    return check_command(command)


def assert_as_printed(paper: str, item: str, facts: Facts) -> None:
    """Compare an item's commands at scale printed with the facts."""
    [found] = [one for one in read_papers()[paper].items if one.item == item]
    assert_commands(found.printed, facts)


def assert_commands(commands: Sequence[str], facts: Facts) -> None:
    """Compare all runs of commands at scale printed with the facts; `methods` are all methods."""
    runs = [run for command in commands for run in runs_of(command)]
    studies = [each for each in commands if split_command(each)[0] in ("table", "sweep")]
    plans = [plan_of_command(command) for command in studies]
    assert {run.experiment.algorithm.name for run in runs} == facts["methods"].values
    wrong = {}
    for key, fact in facts.items():
        if key == "methods" or (key in OF_PLAN and not plans):
            continue
        if key in OF_PLAN:
            values = set().union(*(of_plan(plan, key) for plan in plans))
        else:
            about = [
                run.experiment
                for run in runs
                if not fact.methods or run.experiment.algorithm.name in fact.methods
            ]
            values = {of_run(experiment, key) for experiment in about}
        if values != fact.values:
            wrong[key] = f"{values}, not {fact.values} ({fact.place})"
    assert not wrong, wrong


def assert_numbers(kind: Kind, name: str, numbers: Mapping[str, Mapping[str, float]]) -> None:
    """Compare numbers by row and column with those of a study's file at scale printed."""
    plan = plan_study(kind, name, scale="printed")
    for row, columns in numbers.items():
        assert row in plan.rows
        for column, number in columns.items():
            assert column in [*plan.columns, "mean"]
            paper = plan.paper_of(row, None if column == "mean" else column)
            assert paper is not None
            assert paper[0] == number, (row, column)
