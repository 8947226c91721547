"""Execution of one run, round by round, with callbacks and tracking.

The command line and the Python interface both start runs with `begin` and drive them with `follow`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fedray.base.errors import RunFailed, UserError, named
from fedray.config import Experiment
from fedray.storage.files import explain_disk_full, new_place, results_home
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedray.runtime.assembly import Assembly
    from fedray.runtime.serial import SerialExecutor

ExecutorName: TypeAlias = Literal["ray", "serial"]
Callback: TypeAlias = Callable[[Round], object]
"""Called after every round with a copy of its record; the return value is ignored."""


def executor_for(workers: Any, gpus: Any) -> ExecutorName:
    """Return the executor of a run for which none is named.

    One worker without a GPU is this process, unless RAY_ADDRESS names a cluster, or this process is
    connected to Ray.
    """
    ray: Any = sys.modules.get("ray")
    on_ray = os.environ.get("RAY_ADDRESS") or (ray is not None and ray.is_initialized())
    return "serial" if workers == 1 and not gpus and not on_ray else "ray"


def new_folder(name: str, out: Path | None, go_on: str = "") -> Path:
    """Return the folder of a new run: `out`, or a new one below the results, named by time.

    Args:
        name: the name of the experiment.
        out: the requested folder, if any.
        go_on: the argument that resumes a run, for the message; "" on the command line.

    Raises:
        UserError: if the folder contains a run.
    """
    if out is None:
        return new_place(results_home() / "runs", name)
    out = out.resolve()
    how_to_resume = go_on or f"--resume {shlex.quote(str(out))}"
    if RunFolder(out).has_run:
        raise UserError(f"{out} already holds a run; go on with {how_to_resume}, or name another")
    return out


def begin(
    experiment: Experiment,
    out: Path,
    executor: ExecutorName,
    began: float,
    say: Callable[[str], object],
    wait: Callable[[str], object] = lambda what: None,
) -> Generator[Round, None, None]:
    """Start a run: claim its folder, and return an iterator over its rounds.

    Args:
        experiment: the resolved experiment.
        out: the folder of the run.
        executor: "ray": run clients on Ray workers; "serial": in this process.
        began: when start-up began, in seconds since the epoch.
        say: called with messages for the user before the first round.
        wait: called with a description of the current phase of start-up.

    Raises:
        UserError: if something is missing, or the cluster is too small.
    """
    from fedray.runtime.inputs import check_inputs

    check_inputs(experiment)
    if executor == "serial":
        from fedray.runtime.devices import device_of_this_process
        from fedray.runtime.serial import SerialExecutor
        from fedray.runtime.session import Session

        wait("reading images, partition and models")

        def executor_of(assembly: Assembly) -> SerialExecutor:
            say(assembly.data.images.about)
            return SerialExecutor(assembly, device_of_this_process(experiment.gpus))

        return Session(experiment, out, executor_of, began).rounds()
    import ray

    from fedray.runtime.cluster import check_storage, connect
    from fedray.runtime.resources import preflight
    from fedray.runtime.server import run_on_ray

    if not ray.is_initialized():
        wait("connecting to Ray")
    nodes = connect()
    check_storage(out, len(nodes))
    say(preflight(experiment, nodes))
    wait("waiting for the workers, which read images, partition and models")
    return run_on_ray(experiment, out, began, say)


def follow(
    out: Path,
    rounds: Generator[Round, None, None],
    *,
    start_tracking: Callable[[], object] = lambda: None,
    callbacks: Sequence[Callback] = (),
    stopped: Callable[[KeyboardInterrupt], object] = lambda stop: None,
) -> Generator[Round, None, None]:
    """Execute a run to its end, and yield each round.

    Args:
        out: the folder of the run.
        rounds: the rounds, from `begin`.
        start_tracking: called after each round; see `fedray.tracking.follow.tracking`.
        callbacks: functions that are called with every round.
        stopped: called if the run is interrupted.

    Raises:
        RunFailed: if a callback raises an error.
    """
    with explain_disk_full(out), closing(rounds):
        try:
            for done in rounds:
                start_tracking()
                _call(callbacks, done)
                yield done
        except KeyboardInterrupt as stop:
            stopped(stop)
            raise


def _call(callbacks: Sequence[Callback], done: Round) -> None:
    """Call the user's functions, each with its own copy of the round.

    Raises:
        RunFailed: if a function raises an error.
    """
    for callback in callbacks:
        try:
            callback(deepcopy(done))
        except Exception as error:
            where = extract_tb(error.__traceback__)[-1]
            name = getattr(callback, "__qualname__", type(callback).__qualname__)
            raise RunFailed(
                f"the callback {name} failed after round {done.round}: {named(error)} "
                f"({where.filename}, line {where.lineno}); all finished rounds are saved"
            ) from error
