"""Execution of one run, round by round, with callbacks and tracking.

The command line and the Python interface both drive runs with `started`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from fedray.api.progress import RoundProgress, print_summary, run_headline, say_line
from fedray.base.activity import say_next
from fedray.base.errors import RunFailed, UserError, named
from fedray.config import Experiment
from fedray.storage.files import explain_disk_full
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder
from fedray.tracking.follow import tracking

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


@contextmanager
def started(
    experiment: Experiment,
    out: Path,
    executor: ExecutorName,
    *,
    track: bool,
    callbacks: Sequence[Callback] = (),
    stopped: Callable[[KeyboardInterrupt], object] = lambda stop: None,
) -> Iterator[Generator[Round, None, None]]:
    """Start or continue a run, print what it waits for, and give its rounds to the block.

    Args:
        experiment: the resolved experiment.
        out: the folder of the run; a run that it holds is continued.
        executor: see `begin`.
        track: whether to log to MLflow, from the first round on.
        callbacks: functions that are called with every round.
        stopped: called if the run is interrupted.

    Raises:
        UserError: if something is missing, or the folder holds another experiment.
        RunFailed: if a callback raises an error.
    """
    from fedray.runtime.resume import check_same
    from fedray.storage.states import latest_round

    began, folder = time.time(), RunFolder(out)
    if executor not in get_args(ExecutorName):
        raise UserError(f"executor={executor!r} is neither 'ray' nor 'serial'")
    if folder.has_run:
        check_same(folder, experiment)
    say_line(run_headline(experiment, executor))
    with tracking(out, track=track) as start_tracking:
        if folder.has_run and folder.is_finished:  # its files are checked, as those of any run
            say_line(f"the run in {out} has finished: nothing is left to run")
            executor = "serial"
        elif folder.has_run and latest_round(folder.states) is None:
            say_line(f"there is no checkpoint in {out}: the run begins at round 0")
        rounds = begin(experiment, out, executor, began, say_line, say_next)  # claims it
        if executor == "serial":
            start_tracking()  # with Ray, all CPUs are busy until the first round

        def followed() -> Generator[Round, None, None]:
            with explain_disk_full(out), closing(rounds):
                for done in rounds:
                    start_tracking()
                    _call(callbacks, done)
                    yield done

        try:
            with closing(followed()) as follows:
                yield follows
        except KeyboardInterrupt as stop:
            stopped(stop)
            raise


def run_to_end(experiment: Experiment, out: Path, executor: ExecutorName, **options: Any) -> None:
    """Run an experiment to its end; print each round and a summary. Arguments as for `started`."""
    with started(experiment, out, executor, **options) as rounds:
        with RoundProgress(experiment.rounds) as show:
            for done in rounds:
                show(done)
        print_summary(out, executor)


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
