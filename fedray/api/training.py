"""One run, round by round: begun, tracked, watched, and left in a true state at its end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from itertools import chain
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal, TypeAlias

from fedray.config import Experiment
from fedray.errors import RunFailed, UserError, named
from fedray.files import full_disk_said, reserve, results_home, stamp
from fedray.records import Round, RunFolder, Status
from fedray.remote_results import check_owner, copying
from fedray.tracking import Tracker

ExecutorName: TypeAlias = Literal["ray", "serial"]
Callback: TypeAlias = Callable[[Round], object]
"""Called after every round with its record, a copy; what it returns is not looked at."""


def new_folder(name: str, out: Path | None, go_on: str = "") -> Path:
    """The folder of a new run: `out`, or one below the results that is called after the time.

    The latter is made, so that nobody else takes it.

    Args:
        name: of the experiment.
        out: the folder that is asked for, if one is.
        go_on: what goes on with a run; "" on the command line.

    Raises:
        UserError: when there is a run in it, or it cannot be made.
    """
    if out is None:
        return reserve(results_home() / "runs" / f"{name}-{stamp()}")
    out = out.resolve()
    how = go_on or f"--resume {out}"
    if RunFolder(out).is_taken:
        raise UserError(f"{out} already holds a run; go on with {how}, or name another")
    check_owner(out, how)
    return out


def begin(
    experiment: Experiment,
    out: Path,
    executor: ExecutorName,
    began: float,
    say: Callable[[str], object],
    wait: Callable[[str], object] = lambda what: None,
) -> Generator[Round, None, None]:
    """The rounds of a run, from whichever executor was asked for; its folder is claimed.

    Args:
        experiment: what to run, resolved.
        out: the run's folder.
        executor: where steps run: Ray's workers, or this process.
        began: when start-up began, in seconds since the epoch.
        say: told what the user should hear of before the first round.
        wait: told what is waited for.

    Raises:
        UserError: when something is missing, or the cluster has no room.
    """
    if executor == "serial":
        from fedray.runtime.devices import device_of_this_process
        from fedray.runtime.serial import SerialExecutor, unused_keys
        from fedray.runtime.session import Session

        device = device_of_this_process(experiment.gpus)
        unused = unused_keys(experiment)
        if unused:
            say(unused)
        wait("reading images, partition and models")
        session = Session(experiment, out, lambda assembly: SerialExecutor(assembly, device), began)
        return session.rounds()
    from fedray.runtime.cluster import check_storage, connect
    from fedray.runtime.resources import preflight, server_bundle
    from fedray.runtime.server import run_on_ray

    wait("connecting to Ray")
    nodes = connect()
    check_storage(out, len(nodes), server_bundle(experiment))
    say(preflight(experiment, nodes))
    wait("waiting for the workers, which read images, partition and models")
    return run_on_ray(experiment, out, began)


def follow(
    out: Path,
    rounds: Generator[Round, None, None],
    tracker: Tracker | None,
    *,
    callbacks: Sequence[Callback] = (),
    stopped: Callable[[KeyboardInterrupt], object] = lambda stop: None,
) -> Generator[Round, None, None]:
    """Drive a run to its end, and yield each round.

    Args:
        out: the run's folder.
        rounds: its rounds, from `begin`.
        tracker: follows the folder; None: the run is not tracked. It is closed at the end.
        callbacks: called with every round.
        stopped: called when the run is stopped from outside.

    Raises:
        RunFailed: when a callback raises an error, which is named.
    """
    with full_disk_said(out), copying(out), closing(rounds):
        first = next(rounds, None)  # an experiment that cannot begin leaves no run in the tracker
        status: Status = "FAILED"
        try:
            for done in _tracked(_each_once(chain([first] if first else [], rounds)), out, tracker):
                _call(callbacks, done)
                yield done
            status = "FINISHED"
        except (KeyboardInterrupt, GeneratorExit) as stop:
            if isinstance(stop, KeyboardInterrupt):
                stopped(stop)
            status = "KILLED"
            raise
        finally:
            _end(out, rounds, tracker, status)


def _tracked(rounds: Iterable[Round], out: Path, tracker: Tracker | None) -> Iterator[Round]:
    for done in rounds:
        if tracker is not None:
            tracker.follow(out, "RUNNING")
        yield done


def _end(
    out: Path, rounds: Generator[Round, None, None], tracker: Tracker | None, status: Status
) -> None:
    """End a run, so that its folder is whole, and then its tracker."""
    try:
        rounds.close()
    finally:
        if tracker is not None:
            tracker.follow(out, status)
            tracker.close()


def _each_once(rounds: Iterable[Round]) -> Iterator[Round]:
    """The rounds without repetition: a server that died does its last one again."""
    last = -1
    for done in rounds:
        if done.round > last:
            last = done.round
            yield done


def _call(callbacks: Sequence[Callback], done: Round) -> None:
    """Call each with a copy of its own, so that none can change what is recorded.

    Raises:
        RunFailed: when one raises an error.
    """
    for callback in callbacks:
        try:
            callback(deepcopy(done))
        except Exception as error:
            where = extract_tb(error.__traceback__)[-1]
            raise RunFailed(
                f"the callback {_name(callback)} failed after round {done.round}: {named(error)} "
                f"({where.filename}, line {where.lineno}); the rounds until then are kept"
            ) from error


def _name(callback: Any) -> str:
    return getattr(callback, "__qualname__", type(callback).__qualname__)
