"""The server actor: coordinates the rounds, and hosts the text encoder and the aggregation."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from fedray.config import Experiment, received_experiment
from fedray.errors import RayDied, RunFailed
from fedray.runtime.cluster import Liveness
from fedray.runtime.pool import LOOK_SECONDS, WorkerPool, answer, check_room
from fedray.runtime.ray_executor import RayExecutor, Worker
from fedray.runtime.resources import trial_bundles
from fedray.runtime.session import Session
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import latest_round


class ServerActor:
    """The federation's server: coordinates one run, hosts the text encoder and the aggregation.

    It owns the client actors. If its process is lost, Ray restarts it and repeats the call: the
    run resumes from its checkpoint.

    Args:
        experiment: the experiment as JSON.
        out: the run's folder.
        began: when start-up began, in seconds since the epoch.
    """

    def __init__(self, experiment: str, out: str, began: float) -> None:
        self._rounds = self._run(experiment, Path(out), began)

    def round_after(self, last: int) -> Round | None:
        """Return the first round after `last`; None when the run has ended."""
        return next((done for done in self._rounds if done.round > last), None)

    @staticmethod
    def _run(experiment: str, out: Path, began: float) -> Iterator[Round]:
        """Yield the rounds that an earlier process has written, then those after its checkpoint."""
        parsed, earlier = received_experiment(experiment), RunFolder(out).rounds()
        pool = WorkerPool(Worker, parsed)
        session = Session(parsed, out, lambda a: RayExecutor(a, pool), began)
        yield from earlier
        yield from session.rounds()
        pool.close()


def run_on_ray(experiment: Experiment, out: Path, began: float) -> Generator[Round, None, None]:
    """Run an experiment on the connected cluster.

    Args:
        experiment: the experiment.
        out: the run's folder.
        began: when start-up began, in seconds since the epoch.

    Yields:
        Each round after the checkpoint once, although a restarted server repeats some.

    Raises:
        RunFailed: if the server or a worker is lost more than `faults.max_failures` times, no node
            has room for one, or Ray itself has died.
        FedrayError: the cause that stopped the run.
    """
    liveness = Liveness()
    reached = latest_round(RunFolder(out).states)
    last = -1 if reached is None else reached
    try:
        with _server(experiment, out, began, liveness) as server:
            while (done := _next(server, last, experiment, liveness)) is not None:
                last = done.round
                yield done
    except RunFailed as error:
        if isinstance(error, RayDied):
            ray.shutdown()  # so that this process can start or join another Ray
        raise RunFailed(
            f"{error}; the last checkpoint is in {out}; "
            f"continue with --resume {shlex.quote(str(out))}"
        ) from error


def _next(server: Any, last: int, experiment: Experiment, liveness: Liveness) -> Round | None:
    """Wait for the round after `last`."""
    ref = server.round_after.remote(last)
    while not liveness.wait(ref, LOOK_SECONDS):
        check_room(experiment)
    try:
        done: Round | None = answer(ref, experiment, "the server")
    except RunFailed:
        liveness.check()  # the cause may be that Ray has died
        raise
    return done


@contextmanager
def _server(experiment: Experiment, out: Path, began: float, liveness: Liveness) -> Iterator[Any]:
    """Start a server actor, wait until it is placed, and end it on exit."""
    most, seconds = experiment.faults.max_failures, experiment.faults.start_timeout_s
    actor: Any = ray.remote(ServerActor).options(
        num_cpus=0,
        num_gpus=trial_bundles(experiment)[0].get("GPU", 0),
        max_restarts=most,
        max_task_retries=-1,  # until it has been restarted so often
    )
    server = actor.remote(experiment.model_dump_json(by_alias=True), str(out), began)
    try:
        if not liveness.wait(server.__ray_ready__.remote(), seconds):
            raise RunFailed(
                f"no node had room for the server within {seconds:g} s (faults.start_timeout_s)"
            )
        yield server
    finally:
        ray.kill(server)
