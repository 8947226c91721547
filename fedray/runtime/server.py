"""The server actor: coordinates the rounds, and hosts the text encoder and the aggregation."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError

from fedray.config import Experiment, received_experiment
from fedray.errors import CodeError, Failure, FedrayError, RayDied, RunFailed
from fedray.runtime.cluster import driver_placement
from fedray.runtime.liveness import LOST, Liveness, cause_of
from fedray.runtime.pool import WorkerPool
from fedray.runtime.ray_executor import RayExecutor, Worker
from fedray.runtime.resources import server_bundle
from fedray.runtime.session import Session
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder


class ServerActor:
    """The actor that coordinates one run; it owns the workers and the clients' states."""

    def run(self, experiment: str, out: str, began: float) -> Iterator[Round]:
        """Run the experiment to its end, from the folder's checkpoint on; yield each round."""
        parsed = received_experiment(experiment)
        with closing(WorkerPool(Worker, parsed)) as pool:
            pool.prefetch(parsed)
            session = Session(parsed, Path(out), lambda a: RayExecutor(a, pool), began)
            for done in session.rounds():  # noqa: UP028 - Ray's generators cannot delegate
                yield done


@dataclass
class Losses:
    """The losses of a run's processes in a row without a new round.

    A round counts as new if it is later than every round before. A run that resumes from its last
    checkpoint repeats rounds, which do not count.

    Attributes:
        most: losses after which the run is not started again (`faults.max_failures`).
        last: the last round that was finished; -1 before the first one.
        count: losses since that round.
    """

    most: int
    last: int = -1
    count: int = 0

    def reach(self, round_: int) -> bool:
        """Record that a round has finished; return True if it counts as new."""
        is_new = round_ > self.last
        if is_new:
            self.last, self.count = round_, 0
        return is_new

    def add(self) -> bool:
        """Count a loss; return True if the run must not be started again."""
        self.count += 1
        return self.count > self.most


def run_on_ray(experiment: Experiment, out: Path, began: float) -> Generator[Round, None, None]:
    """Run an experiment on the connected cluster; a lost server is replaced, and the run resumes.

    Args:
        experiment: the experiment.
        out: the run's folder.
        began: when start-up began, in seconds since the epoch.

    Yields:
        Each round once, although a new server repeats the rounds after the last checkpoint.

    Raises:
        RunFailed: if servers are lost more than `faults.max_failures` times without a new round,
            no node has room for one, or Ray itself has died.
        FedrayError: the cause that stopped the run; a `CodeError` has the traceback of the actor.
    """
    liveness = Liveness()
    losses = Losses(experiment.faults.max_failures)
    while True:
        try:
            rounds = _rounds_of_one_server(experiment, out, began, liveness)
            yield from (done for done in rounds if losses.reach(done.round))
            return
        except RayDied as error:
            ray.shutdown()  # so that this process can start or join another Ray
            raise RunFailed(f"{error}; {_how_to_resume(out)}") from None
        except LOST as error:
            if losses.add():
                raise RunFailed(
                    f"the server was lost {losses.count} time(s) without a new round "
                    f"(faults.max_failures={losses.most}): {cause_of(error)}; "
                    f"{_how_to_resume(out)}"
                ) from error
        # The lost server wrote these rounds but did not yield them; the next one continues.
        for missed in [done for done in RunFolder(out).rounds() if done.round > losses.last]:
            losses.reach(missed.round)
            yield missed


def _rounds_of_one_server(
    experiment: Experiment, out: Path, began: float, liveness: Liveness
) -> Iterator[Round]:
    """Yield the rounds of one server actor until the run ends or the server is lost."""
    try:
        with _server(experiment, out, liveness) as actor:
            stream = actor.run.options(num_returns="streaming").remote(
                experiment.model_dump_json(by_alias=True), str(out), began
            )
            yield from _items(stream, liveness)
    except RayTaskError as error:  # the actor has completed its folder
        raise _original_error(error, out) from None
    except BaseException as error:
        if isinstance(error, LOST):
            liveness.check()
        raise


def _items(stream: Iterator[Any], liveness: Liveness) -> Iterator[Round]:
    """Yield the rounds of a server actor's stream."""
    while True:
        liveness.wait(stream)
        ref = next(stream, None)
        if ref is None:
            return
        yield ray.get(ref)


@contextmanager
def _server(experiment: Experiment, out: Path, liveness: Liveness) -> Iterator[Any]:
    """Start a server actor, wait until it is placed, and kill it on exit."""
    bundle, seconds = server_bundle(experiment), experiment.faults.start_timeout_s
    server: Any = ray.remote(ServerActor).options(
        num_cpus=0,
        num_gpus=bundle.get("GPU", 0),
        scheduling_strategy=driver_placement(bundle),
    )
    actor = server.remote()
    try:
        if not liveness.wait(actor.__ray_ready__.remote(), seconds):
            raise RunFailed(
                f"no node had room for the server within {seconds:g} s (faults.start_timeout_s); "
                f"{_how_to_resume(out)}"
            )
        yield actor
    finally:
        ray.kill(actor)


def _original_error(error: RayTaskError, out: Path) -> FedrayError:
    """Return the error that the actor raised; for a fault in code, store its traceback."""
    if isinstance(error.cause, RunFailed):
        advice = "" if "--resume" in str(error.cause) else f"; {_how_to_resume(out)}"
        return RunFailed(f"{error.cause}{advice}")
    if isinstance(error.cause, FedrayError):
        return error.cause
    failure = replace(Failure.of(error.cause), traceback=str(error))
    return CodeError(failure, RunFolder(out).keep_error(failure.traceback))


def _how_to_resume(out: Path) -> str:
    return f"the last checkpoint is in {out}; continue with --resume {shlex.quote(str(out))}"
