"""`fedray verify DIR`: repeat a run, or a sample of a table's runs, and compare the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import click
import numpy as np

from fedray.base.activity import say_next
from fedray.base.errors import UserError
from fedray.command import PATH, RUN_ERROR, Command, plugins_of_runs
from fedray.results.difference import Gap, Verdict, gaps, input_changes, metric_gaps, verdict
from fedray.results.record import DATA, Measured, TableRecord
from fedray.storage.environment import Environment
from fedray.storage.files import new_place, results_home
from fedray.storage.run import Run
from fedray.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedray.config import Experiment


@dataclass(frozen=True)
class RecordedRun:
    """A finished run to be repeated, as recorded in its folder or in a table.

    Attributes:
        name: the name in the output.
        experiment: the experiment that was run.
        round: the last round that is compared.
        environment: the environment of the run.
        compare: returns how a new run differs: in its numbers, and in its inputs.
    """

    name: str
    experiment: Experiment
    round: int
    environment: Environment
    compare: Callable[[Run], tuple[list[Gap], list[str]]]


@click.command(cls=Command)
@click.argument("folder", type=PATH, metavar="DIR")
@click.option(
    "--sample", type=click.IntRange(1), default=3, help="Number of a table's runs; default: 3."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, help="Seed for drawing the runs; default: 0."
)
@plugins_of_runs
def command(folder: Path, sample: int, seed: int) -> int:
    """Repeat finished runs in this process and compare the numbers.

    DIR is the folder of a run or of a table. Of a table, a sample of the reported runs is
    repeated, and all verdicts are recomputed from its numbers. Exit code 0: the numbers are
    equal, or on other hardware within tolerance; 1: they differ.
    """
    say_next("importing PyTorch")
    verdicts = []
    for recorded in runs_to_verify(folder, sample, seed):
        say_next(f"{recorded.name}: {recorded.round} rounds")
        result, home = rerun(recorded)
        verdicts.append(result)
        print("\n    ".join([f"  {result.lines[0]}", *result.lines[1:]]), flush=True)
        if home is not None:
            print(f"    the new run: {home}")
    is_table = (folder / DATA).is_file()
    wrong = TableRecord.read(folder / DATA).wrong_verdicts() if is_table else []
    for claim in wrong:
        print(f"  the verdict on {claim} does not follow from the numbers of its seeds")
    return RUN_ERROR if wrong or not all(result.holds for result in verdicts) else 0


def runs_to_verify(folder: Path, sample: int, seed: int) -> Sequence[RecordedRun]:
    """Return the runs to repeat.

    Raises:
        UserError: if the folder contains neither a run nor a table, or a file is damaged.
    """
    from fedray.runtime.resolve import resolve

    if (folder / DATA).is_file():
        runs = list(runs_of_table(TableRecord.read(folder / DATA)))
        if not runs:
            raise UserError(f"{folder / DATA} reports no finished run")
        drawn = np.random.default_rng(seed).permutation(len(runs))[:sample]
        return [runs[number] for number in drawn]
    files = RunFolder(folder)
    if not files.has_run:
        raise UserError(f"{folder} holds no run.json and no table.json; pass a run or a table")
    run = files.read()
    experiment, environment = resolve(str(files.head)), run.info.environment

    def compare(now: Run) -> tuple[list[Gap], list[str]]:
        return gaps(run, now), input_changes(run.info, now.info)

    return [RecordedRun(str(folder), experiment, run.done, environment, compare)]


def runs_of_table(record: TableRecord) -> Iterator[RecordedRun]:
    """Yield the reported runs of a table."""
    from fedray.studies.plan import StudyPlan

    plan = StudyPlan.model_validate(record.plan.model_dump())
    for cell in record.cells:
        for seed, run in record.reported(cell).items():
            yield RecordedRun(
                name=f"{cell.place}, seed {seed}",
                experiment=plan.experiment_of(cell.place, cell.choices[seed], "report", seed),
                round=run.round,
                environment=Environment(run.versions, run.hardware),
                compare=partial(_compare_published, run, plan.chosen_by(cell.row)),
            )


def _compare_published(then: Measured, chooser: str, now: Run) -> tuple[list[Gap], list[str]]:
    """Compare a new run with a table's run, which records the numbers of one round."""
    metrics, choice = now.rounds[-1].metrics, "the metric that chose"
    again = {name: metrics[name] for name in then.values if name in metrics}
    again |= {choice: metrics[chooser]} if chooser in metrics else {}
    info = replace(now.info, partition_sha256=then.partition, data_sha256=then.data)
    found = metric_gaps(then.round, {**then.values, choice: then.choice}, again)
    return list(found), input_changes(info, now.info)


def rerun(recorded: RecordedRun) -> tuple[Verdict, Path | None]:
    """Repeat a run; return the verdict, and the new run's folder unless the runs are equal."""
    from fedray.api.training import begin, follow

    home = new_place(results_home() / "verify", recorded.experiment.name)
    rounds = begin(recorded.experiment, home, "serial", time.time(), lambda line: None)
    with closing(follow(home, rounds)) as done:
        for round_ in done:
            if round_.round == recorded.round:
                break
    now = RunFolder(home).read()
    differences, inputs = recorded.compare(now)
    result = verdict(differences, inputs, recorded.environment, now.info.environment)
    if differences or inputs:
        return result, home
    rmtree(home)
    return result, None
