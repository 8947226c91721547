"""The server as an actor: it coordinates rounds and hosts text encoder and aggregation."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError

from fedray.config import Experiment
from fedray.errors import CodeError, Failure, FedrayError, RunFailed
from fedray.records import ResultFile, Round, RunFolder
from fedray.runtime.cluster import with_driver
from fedray.runtime.pool import LOST, WorkerPool, cause_of
from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.resources import server_bundle
from fedray.runtime.session import Session
from fedray.runtime.worker import LogRelay

log = logging.getLogger(__name__)


class ServerActor:
    """The coordinating actor of one run; it owns the workers and the clients' states."""

    def run(self, experiment: str, out: str, began: float) -> Iterator[Round | str]:
        """Run to the end, going on after the folder's checkpoint.

        Yields each round and, between them, what the user should hear of from here and, after the
        first round, when they have read their data, from the workers.
        """
        asked = Experiment.model_validate_json(experiment)
        notices, pool = LogRelay(), WorkerPool(asked)
        pool.prefetch(asked)
        try:
            session = Session(asked, Path(out), lambda assembly: RayExecutor(assembly, pool), began)
            for number, done in enumerate(session.rounds()):
                for said in [*notices.take(), *(pool.notices() if number == 0 else [])]:
                    yield said  # Ray's generators cannot delegate to a list
                yield done
            for said in pool.notices():
                yield said
        except Exception:
            for said in notices.take():  # they may be about the cause
                yield said
            raise
        finally:
            pool.close()


def run_on_ray(experiment: Experiment, out: Path, began: float) -> Generator[Round, None, None]:
    """Run on the connected cluster; a server that is lost is replaced and resumes.

    Args:
        experiment: what to run.
        out: the run's folder.
        began: when start-up began, in seconds since the epoch.

    Yields:
        Each round; rounds after the last checkpoint come again when the server was lost.

    Raises:
        RunFailed: when servers were lost more than `faults.max_failures` times without a new
            round, or no node has room for one.
        FedrayError: the cause that stopped the run; a `CodeError` has the traceback of the actor.
    """
    most, last, losses = experiment.faults.max_failures, -1, 0
    while True:
        try:
            for done in _rounds_of_one_server(experiment, out, began):
                losses = 0 if done.round > last else losses
                last = max(last, done.round)
                yield done
            return
        except LOST as error:
            losses += 1
            if losses > most:
                raise RunFailed(
                    f"the server was lost {losses} time(s) without a new round "
                    f"(faults.max_failures={most}): {cause_of(error)}; {_how_to_resume(out)}"
                ) from error
        # What it had written down but not handed over; the next server begins after that.
        written = [done for done in RunFolder(out).rounds() if done.round > last]
        last = max([last, *(done.round for done in written)])
        yield from written


def _rounds_of_one_server(experiment: Experiment, out: Path, began: float) -> Iterator[Round]:
    """Yield the rounds of one server actor, to the end of the run or until it is lost."""
    try:
        with _server(experiment, out) as actor:
            stream = actor.run.options(num_returns="streaming").remote(
                experiment.model_dump_json(by_alias=True), str(out), began
            )
            yield from _rounds_among(stream)
    except RayTaskError as error:  # its folder is as it wants to leave it
        raise _in_own_terms(error, out) from None
    except BaseException:
        folder = RunFolder(out)
        with suppress(OSError):  # on a full disk rounds.jsonl says as much
            if folder.has_result and not folder.is_finished:
                # an actor that is killed cannot do it itself
                folder.write_head(ResultFile.of(folder.read()))
        raise


def _rounds_among(stream: Iterable[Any]) -> Iterator[Round]:
    """Yield the rounds that a server's actor yields, and log the warnings between them."""
    for ref in stream:
        said = ray.get(ref)
        if isinstance(said, str):
            log.warning("%s", said)
        else:
            yield said


@contextmanager
def _server(experiment: Experiment, out: Path) -> Iterator[Any]:
    """Start a server's actor, wait for its place, and end it afterwards."""
    bundle, seconds = server_bundle(experiment), experiment.faults.start_timeout_s
    server: Any = ray.remote(ServerActor).options(
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        scheduling_strategy=with_driver(bundle),
    )
    actor = server.remote()
    try:
        if not ray.wait([actor.__ray_ready__.remote()], timeout=seconds)[0]:
            raise RunFailed(
                f"no node had room for the server within {seconds:g} s (faults.start_timeout_s); "
                f"{_how_to_resume(out)}"
            )
        yield actor
    finally:
        ray.kill(actor)


def _in_own_terms(error: RayTaskError, out: Path) -> FedrayError:
    """Return the error inside the actor; of a fault in the code, keep the traceback."""
    if isinstance(error.cause, RunFailed):
        how = "" if "--resume" in str(error.cause) else f"; {_how_to_resume(out)}"
        return RunFailed(f"{error.cause}{how}")
    if isinstance(error.cause, FedrayError):
        return error.cause
    failure = replace(Failure.of(error.cause), traceback=str(error))
    return CodeError(failure, RunFolder(out).keep_error(failure.traceback))


def _how_to_resume(out: Path) -> str:
    return f"the last checkpoint is in {out}, continue with --resume {out}"
