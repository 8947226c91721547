"""`fedray verify DIR`: repeat a run, or a sample of a table's runs, and compare the numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import click
import numpy as np

from fedray.base.activity import say_next
from fedray.base.errors import UserError
from fedray.command import PATH, RUN_ERROR, Command, plugins_of_runs
from fedray.results.difference import Gap, gaps, input_changes, metric_gaps, verdict
from fedray.results.record import DATA, Measured, TableRecord
from fedray.storage.environment import Environment
from fedray.storage.files import explain_disk_full, new_place, results_home
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
        then: the run, or a table's numbers of one round.
        chooser: the metric that chose this round; "" for a run.
    """

    name: str
    experiment: Experiment
    round: int
    environment: Environment
    then: Run | Measured
    chooser: str = ""

    def compare(self, now: Run) -> tuple[list[Gap], list[str]]:
        """Return how a new run differs: in its numbers, and in its inputs."""
        then = self.then
        if isinstance(then, Run):
            return gaps(then, now), input_changes(then.info, now.info)
        metrics, choice = now.rounds[-1].metrics, "the metric that chose"
        again = {name: metrics[name] for name in then.values if name in metrics}
        again |= {choice: metrics[self.chooser]} if self.chooser in metrics else {}
        found = metric_gaps(then.round, {**then.values, choice: then.choice}, again)
        info = replace(now.info, partition_sha256=then.partition, data_sha256=then.data)
        return list(found), input_changes(info, now.info)


@click.command(cls=Command)
@click.argument("folder", type=PATH, metavar="DIR")
@click.option(
    "--sample", type=click.IntRange(1), default=3, help="Number of a table's runs; default: 3."
)
@plugins_of_runs
def command(folder: Path, sample: int) -> int:
    """Repeat finished runs in this process and compare the numbers.

    DIR is the folder of a run or of a table, of which a sample of the reported runs is repeated.
    Exit code 0: the numbers are equal, or on other hardware within tolerance; 1: they differ.
    """
    say_next("importing PyTorch")
    from fedray.runtime.resolve import resolve

    files = RunFolder(folder)
    if (folder / DATA).is_file():
        record = TableRecord.read(folder / DATA)
        runs = list(runs_of_table(record))
        runs = [runs[i] for i in np.random.default_rng(0).permutation(len(runs))[:sample]]
    elif files.has_run:
        run = files.read()
        experiment = resolve(str(files.head))
        runs = [RecordedRun(str(folder), experiment, run.done, run.info.environment, run)]
    else:
        raise UserError(f"{folder} holds no run.json and no table.json; pass a run or a table")
    holds = [repeat(recorded) for recorded in runs]
    return 0 if holds and all(holds) else RUN_ERROR


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
                then=run,
                chooser=plan.chosen_by(cell.row),
            )


def repeat(recorded: RecordedRun) -> bool:
    """Repeat a run and print the verdict; return True if the numbers hold.

    The new run's folder is removed if the runs are equal.
    """
    from fedray.api.training import begin

    say_next(f"{recorded.name}: {recorded.round} rounds")
    home = new_place(results_home() / "verify", recorded.experiment.name)
    rounds = begin(recorded.experiment, home, "serial", time.time(), lambda line: None)
    with explain_disk_full(home), closing(rounds) as done:
        for round_ in done:
            if round_.round == recorded.round:
                break
    now = RunFolder(home).read()
    differences, inputs = recorded.compare(now)
    result = verdict(differences, inputs, recorded.environment, now.info.environment)
    print("\n    ".join([f"  {result.lines[0]}", *result.lines[1:]]), flush=True)
    if differences or inputs:
        print(f"    the new run: {home}")
    else:
        rmtree(home)
    return result.holds
