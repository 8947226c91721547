"""The server as an actor: it coordinates rounds and hosts text encoder and aggregation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from fedray.config import Experiment
from fedray.errors import FedrayError, RunFailed
from fedray.runtime.resources import server_bundle
from fedray.runtime.session import Record, Session, read_result
from fedray.runtime.workers import RayExecutor, WorkerPool


class Server:
    """The coordinating actor of one run; it owns the workers and the clients' states."""

    def run(self, experiment: str, out: str, began: float) -> Iterator[Record]:
        """Run to the end, going on after the folder's checkpoint; yields each round.

        Args:
            experiment: the experiment as JSON.
            out: the run's folder.
            began: when start-up began, in seconds since the epoch.
        """
        asked = Experiment.model_validate_json(experiment)
        pool = WorkerPool(asked)
        try:
            session = Session(asked, Path(out), lambda assembly: RayExecutor(assembly, pool), began)
            yield from session.rounds()
        finally:
            pool.close()


def run_on_ray(experiment: Experiment, out: Path, began: float) -> Iterator[Record]:
    """Run on the connected cluster; a server that dies is replaced and goes on.

    Args:
        experiment: what to run.
        out: the run's folder.
        began: when start-up began, in seconds since the epoch.

    Yields:
        Each round; rounds after the last checkpoint come again when the server died.

    Raises:
        RunFailed: when the server died more than `faults.max_failures` times.
        FedrayError: whatever stopped the run on purpose.
    """
    bundle = server_bundle(experiment)
    deaths, last = 0, -1
    while True:
        server: Any = ray.remote(Server).options(
            num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0)
        )
        actor = server.remote()
        stream = actor.run.options(num_returns="streaming").remote(
            experiment.model_dump_json(by_alias=True), str(out), began
        )
        try:
            for ref in stream:
                record: Record = ray.get(ref)
                last = max(last, record["round"])
                yield record
            return
        except RayTaskError as error:
            if isinstance(error.cause, RunFailed):
                raise RunFailed(f"{error.cause}; {_how_to_go_on(out)}") from None
            if isinstance(error.cause, FedrayError):
                raise error.cause from None
            raise
        except RayActorError as error:
            deaths += 1
            if deaths > experiment.faults.max_failures:
                raise RunFailed(
                    f"the server died {deaths} time(s) (faults.max_failures="
                    f"{experiment.faults.max_failures}); {_how_to_go_on(out)}"
                ) from error
            # What it had written down but not handed over; the next server begins after that.
            for record in _written(out):
                if record["round"] > last:
                    last = record["round"]
                    yield record
        finally:
            ray.kill(actor)


def _written(out: Path) -> list[Record]:
    if not (out / "result.json").exists():
        return []
    rounds: list[Record] = read_result(out)["rounds"]
    return rounds


def _how_to_go_on(out: Path) -> str:
    return f"the last checkpoint is in {out}, continue with --resume {out}"
