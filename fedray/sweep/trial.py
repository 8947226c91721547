"""One configuration inside Ray Tune: the seeds of one federation in lockstep.

The trial's own actor is the federation's server, and its only worker where that has no GPU. Other
workers sit in the bundles of the trial's placement group; nothing here creates another group.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.errors import CodeError, Failure, FedrayError, RunFailed, UserError, nearest
from fedray.records import Round, RunFolder
from fedray.sweep.ledger import DIVERGED
from fedray.sweep.seeds import (
    MergedRound,
    Objective,
    lockstep,
    merge,
    objective_of,
    read_runs,
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
    """The trainable of a sweep, see `tell`.

    Args:
        config: under "trial", its `number` and its swept `values`; why it was `given_up`, if so.
        plan: what is swept, and how.
        home: the invocation's folder.
    """
    values = config["trial"]["values"]
    folder = home / folder_name(config["trial"]["number"], values)
    tell(config["trial"], folder, lambda: reports(of_sweep(plan, values, folder)))


def tell(
    trial: Mapping[str, Any],
    folder: Path,
    make: Callable[[], Generator[dict[str, Any], None, None]],
) -> None:
    """Tell Ray Tune what a trial reports: once per new round, with the objective so far.

    An error that would come again is reported as "failed" and ends the trial; when processes died,
    the error is raised and Ray Tune starts the trial again, which goes on after its checkpoints.

    Args:
        trial: what Ray Tune was given; why it was `given_up`, if so.
        folder: the trial's.
        make: makes what gives the reports.
    """
    from ray import tune

    if "given_up" in trial:
        tune.report({"objective": math.nan, "failed": trial["given_up"]})
        return
    os.environ.setdefault("TUNE_FUNCTION_THREAD_TIMEOUT_S", str(STOPPED_SECONDS))
    try:
        with closing(_made(make)) as all_reports:
            for report in all_reports:
                tune.report(report)  # raises SystemExit where ASHA stops the trial
    except RunFailed:
        raise
    except Exception as error:
        RunFolder(folder).keep_error(Failure.of(error).traceback)
        tune.report({"objective": math.nan, "failed": reason_of(error)})


def _made(
    make: Callable[[], Generator[dict[str, Any], None, None]],
) -> Generator[dict[str, Any], None, None]:
    """What is reported; code that calls `sys.exit` on the way has failed, and was not stopped.

    Raises:
        CodeError: in place of its SystemExit.
    """
    try:
        with closing(make()) as all_reports:
            yield from all_reports
    except SystemExit as error:
        raise CodeError(Failure.of(error)) from error


def reason_of(error: Exception) -> str:
    """Why a trial failed, in one sentence, which says first whether it diverged."""
    failure = Failure.of(error)
    reason = str(error) if isinstance(error, FedrayError) else failure.cause
    return f"{DIVERGED}: {reason}" if failure.diverged else reason


@dataclass(frozen=True)
class Lockstep:
    """What a trial runs: one federation with several seeds, round by round together.

    Attributes:
        experiments: one per seed.
        folder: the trial's; no other process may use it meanwhile.
        runs: each experiment's folder.
        chooser: the number that chooses.
        metric: what is shown beside it.
        objective: what the trial is worth after some rounds; None while nothing was measured.
        wait_seconds: how long to wait for another process that uses the folder; -1: to its end.
    """

    experiments: Sequence[Experiment]
    folder: Path
    runs: Sequence[RunFolder]
    chooser: str
    metric: str
    objective: Callable[[Sequence[MergedRound]], Objective | None]
    wait_seconds: float = 60.0


def of_sweep(plan: SweepPlan, values: Mapping[str, Any], folder: Path) -> Lockstep:
    """One configuration of a sweep, with all its seeds."""
    return Lockstep(
        [plan.experiment_of(values, seed) for seed in plan.seeds],
        folder,
        seed_folders(folder, plan.seeds),
        plan.objective,
        plan.metric,
        lambda rounds: objective_of(rounds, plan),
    )


def reports(trial: Lockstep) -> Generator[dict[str, Any], None, None]:
    """Run all seeds round by round; yield what is reported.

    Rounds that the folder already holds are not reported again, but count in the objective; the
    last round always is.
    """
    with _held(trial.folder, trial.wait_seconds), closing(_merged_rounds(trial)) as all_merged:
        planned, before = trial.experiments[0].rounds, read_runs(trial.runs)
        known = min((run.done for run in before if not run.is_finished), default=-1)
        over = before and all(run.is_finished for run in before)
        last = max(run.done for run in before) if over else planned
        done: list[MergedRound] = []
        for merged in all_merged:
            done.append(merged)
            if merged.round < last and (over or merged.round <= known):
                continue
            objective = trial.objective(done)
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
            }
        if trial.objective(done) is None:
            there = {name for merged in done for name in merged.mean.metrics}
            raise UserError(
                f"metric: no round has '{trial.chooser}'.{nearest(trial.chooser, there)}"
            )


@contextmanager
def _held(folder: Path, wait_seconds: float) -> Iterator[None]:
    """Keep every other process out of a trial's folder; it is made when missing."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".trial.lock", timeout=wait_seconds)  # a run in it has its own
    try:
        lock.acquire()
    except Timeout:
        raise RunFailed(f"{folder} is still in use by another process") from None
    try:
        yield
    finally:
        lock.release()


def _merged_rounds(trial: Lockstep) -> Generator[MergedRound, None, None]:
    """Every round of all seeds from 0: what their folders hold, then what they run."""
    if all(out.is_finished for out in trial.runs):  # by another process meanwhile
        for rounds in lockstep([iter(out.rounds()) for out in trial.runs]):
            yield merge(rounds, trial.chooser, trial.metric)
    else:
        yield from _run(trial)


def _run(trial: Lockstep) -> Generator[MergedRound, None, None]:
    from fedray.runtime.session import Session

    began = time.time()
    with warm.trial(trial.experiments) as executor:
        streams = [
            all_rounds(Session(experiment, out.path, executor, began, "none"), out.rounds())
            for experiment, out in zip(trial.experiments, trial.runs, strict=True)
        ]
        with ExitStack() as stack:
            for stream in streams:
                stack.enter_context(closing(stream))
            for rounds in lockstep(streams):
                yield merge(rounds, trial.chooser, trial.metric)


def all_rounds(session: Session, before: Sequence[Round]) -> Generator[Round, None, None]:
    """Every round of a session from 0: what its folder holds, then what it runs."""
    new = session.rounds()
    first = next(new, None)
    yield from (done for done in before if first is None or done.round < first.round)
    if first is not None:
        yield first
        yield from new
