"""The server actor: coordinates the rounds, and hosts the text encoder and the aggregation."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ray

from fedray.base.errors import RayDied, RunFailed
from fedray.config import Experiment, received_experiment
from fedray.runtime.assembly import load_data
from fedray.runtime.cluster import Liveness
from fedray.runtime.pool import WorkerPool, answer, restarts, wait
from fedray.runtime.ray_executor import RayExecutor, Worker
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
        self._experiment = received_experiment(experiment)
        self._rounds = self._run(self._experiment, Path(out), began)

    def about(self) -> str:
        """Return one line about the images, which the first round has read."""
        return load_data(self._experiment).images.about

    def round_after(self, last: int | None) -> Round | None:
        """Return the first round after `last`, if there is one; None when the run has ended."""
        return next((done for done in self._rounds if last is None or done.round > last), None)

    @staticmethod
    def _run(experiment: Experiment, out: Path, began: float) -> Iterator[Round]:
        """Yield the rounds that an earlier process has written, then those after its checkpoint."""
        earlier, pool = RunFolder(out).rounds(), WorkerPool(Worker, experiment)
        session = Session(experiment, out, lambda a: RayExecutor(a, pool), began)
        yield from earlier
        yield from session.rounds()
        pool.close()


def run_on_ray(
    experiment: Experiment,
    out: Path,
    began: float,
    say: Callable[[str], object] = lambda line: None,
) -> Generator[Round, None, None]:
    """Run an experiment on the connected cluster.

    Args:
        experiment: the experiment.
        out: the run's folder.
        began: when start-up began, in seconds since the epoch.
        say: called with one line about the images before the first round.

    Yields:
        Each round after the checkpoint once, although a restarted server repeats some.

    Raises:
        RunFailed: if the server or a worker is lost more than `faults.max_failures` times, no node
            has room for one, or Ray itself has died.
        FedrayError: the cause that stopped the run.
    """
    seconds, liveness = experiment.faults.start_timeout_s, Liveness()
    ask = partial(answer, experiment=experiment, actor="the server", check=liveness.check)
    last, is_said = latest_round(RunFolder(out).states), False
    options = {"num_cpus": 0, "num_gpus": experiment.server_gpus, **restarts(experiment)}
    start: Any = ray.remote(ServerActor).options(**options).remote
    server = start(experiment.model_dump_json(by_alias=True), str(out), began)
    try:
        if not wait(server.__ray_ready__.remote(), seconds, liveness.check):
            raise RunFailed(
                f"no node had room for the server within {seconds:g} s (faults.start_timeout_s)"
            )
        while (done := ask(server.round_after.remote(last))) is not None:
            liveness.check()  # actors may live a while without the Ray of their node
            if not is_said:
                say(ask(server.about.remote()))
                is_said = True
            last = done.round
            yield done
    except RunFailed as error:
        cause = error if isinstance(error, RayDied) else liveness.cause() or error
        if isinstance(cause, RayDied):
            ray.shutdown()  # so that this process can start or join another Ray
        raise RunFailed(
            f"{cause}; the last checkpoint is in {out}; "
            f"continue with --resume {shlex.quote(str(out))}"
        ) from error
    finally:
        if ray.is_initialized():
            ray.kill(server)
