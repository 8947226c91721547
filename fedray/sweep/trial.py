"""One configuration inside Ray Tune: the seeds of one federation in lockstep.

The trial's own actor is the federation's server, and its only worker where that has no GPU. Other
workers sit in the bundles of the trial's placement group; nothing here creates another group.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.errors import Failure, FedrayError, RunFailed, UserError, nearest
from fedray.records import Round, RunFolder
from fedray.sweep.seeds import (
    MergedRound,
    lockstep,
    merge,
    objective_of,
    read_seeds,
    seed_folders,
)
from fedray.sweep.spec import SweepPlan, folder_name
from fedray.sweep.warm import warm

if TYPE_CHECKING:
    from fedray.config import Experiment
    from fedray.runtime.session import Session

STOPPED_SECONDS = 60
"""How long the next trial waits until one that was stopped has left the process."""


def run_trial(config: Mapping[str, Any], plan: SweepPlan, home: Path) -> None:
    """The trainable: one report per new round, with the objective so far.

    An error that would come again is reported as "failed" and ends the trial; when processes died,
    the error is raised and Ray Tune starts the trial again, which goes on after its checkpoints.

    Args:
        config: under "trial", its `number` and its swept `values`; why it was `given_up`, if so.
        plan: what is swept, and how.
        home: the invocation's folder.
    """
    from ray import tune

    if "given_up" in config["trial"]:
        tune.report({"objective": math.nan, "failed": config["trial"]["given_up"]})
        return
    values = config["trial"]["values"]
    folder = home / folder_name(config["trial"]["number"], values)
    os.environ.setdefault("TUNE_FUNCTION_THREAD_TIMEOUT_S", str(STOPPED_SECONDS))
    try:
        with closing(reports(plan, values, folder)) as all_reports:
            for report in all_reports:
                tune.report(report)  # raises SystemExit where ASHA stops the trial
    except RunFailed:
        raise
    except Exception as error:
        failure = Failure.of(error)
        RunFolder(folder).keep_error(failure.traceback)
        reason = str(error) if isinstance(error, FedrayError) else failure.cause
        tune.report({"objective": math.nan, "failed": reason})


def reports(
    plan: SweepPlan, values: Mapping[str, Any], folder: Path
) -> Generator[dict[str, Any], None, None]:
    """Run all seeds round by round; yield what is reported.

    Rounds that the folder already holds are not reported again, but count in the objective; the
    last round always is.
    """
    experiments = [plan.experiment_of(values, seed) for seed in plan.seeds]
    with _held(folder), closing(_merged_rounds(plan, experiments, folder)) as all_merged:
        planned, before = experiments[0].rounds, read_seeds(folder, plan)
        known = min((run.done for run in before if not run.is_finished), default=-1)
        over = before and all(run.is_finished for run in before)
        last = max(run.done for run in before) if over else planned
        done: list[MergedRound] = []
        unreported: list[Round] = []
        for merged in all_merged:
            done.append(merged)
            if merged.round < last and (over or merged.round <= known):
                continue
            unreported.append(merged.mean)
            objective = objective_of(done, plan)
            if objective is None:
                continue  # not evaluated yet; Ray Tune wants the objective in every report
            yield {
                "round": merged.round,
                "rounds": planned,
                "objective": objective.value,
                "objective_std": objective.std,
                "test": objective.test,
                "test_std": objective.test_std,
                "best_rounds": objective.rounds,
                "means": unreported,
            }
            unreported = []
        if objective_of(done, plan) is None:
            there = {name for merged in done for name in merged.mean.metrics}
            raise UserError(
                f"metric: no round has '{plan.objective}'.{nearest(plan.objective, there)}"
            )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep every other process out of a trial's folder; it is made when missing."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=60)
    try:
        lock.acquire()
    except Timeout:
        raise RunFailed(f"{folder} is still in use by another process") from None
    try:
        yield
    finally:
        lock.release()


def _merged_rounds(
    plan: SweepPlan, experiments: Sequence[Experiment], folder: Path
) -> Generator[MergedRound, None, None]:
    """Every round of all seeds from 0: what their folders hold, then what they run."""
    from fedray.runtime.session import Session

    began = time.time()
    with warm.trial(experiments) as executor:
        streams = [
            all_rounds(Session(experiment, out.path, executor, began), out.rounds())
            for experiment, out in zip(experiments, seed_folders(folder, plan.seeds), strict=True)
        ]
        with ExitStack() as stack:
            for stream in streams:
                stack.enter_context(closing(stream))
            for rounds in lockstep(streams):
                yield merge(rounds, plan.objective, plan.metric)


def all_rounds(session: Session, before: Sequence[Round]) -> Generator[Round, None, None]:
    """Every round of a session from 0: what its folder holds, then what it runs."""
    new = session.rounds()
    first = next(new, None)
    yield from (done for done in before if first is None or done.round < first.round)
    if first is not None:
        yield first
        yield from new
