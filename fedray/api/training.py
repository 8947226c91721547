"""One run, round by round: begun, tracked, watched, and left in a true state at its end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from traceback import extract_tb
from typing import Literal, TypeAlias

from fedray.config import Experiment
from fedray.errors import RunFailed, UserError, named
from fedray.files import explain_disk_full, reserve, results_home, stamp
from fedray.records import Round, RunFolder, Status
from fedray.records.observer import Observer, closing_all
from fedray.remote_results import check_owner, copying
from fedray.tracking import Tracker

ExecutorName: TypeAlias = Literal["ray", "serial"]
Callback: TypeAlias = Callable[[Round], object]
"""Called after every round with its record, a copy; what it returns is not looked at."""


def new_folder(name: str, out: Path | None, go_on: str = "") -> Path:
    """Return the folder of a new run: `out`, or one in the results named after the time.

    The latter is made, so that nobody else takes it.

    Args:
        name: of the experiment.
        out: the folder that is asked for, if one is.
        go_on: the call that resumes a run; "" on the command line.

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
    """Yield the rounds of a run on the chosen executor; its folder is claimed.

    Args:
        experiment: what to run, resolved.
        out: the run's folder.
        executor: where steps run: Ray's workers, or this process.
        began: when start-up began, in seconds since the epoch.
        say: called with messages for the user before the first round.
        wait: called with a text about what the run waits for.

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
    watch = Tracking(tracker, out)
    observers = (watch, Callbacks(callbacks))
    with explain_disk_full(out), copying(out), closing_all(observers), closing(rounds):
        try:
            yield from _observed(_each_once(rounds), observers)
            watch.status = "FINISHED"
        except (KeyboardInterrupt, GeneratorExit) as stop:
            if isinstance(stop, KeyboardInterrupt):
                stopped(stop)
            watch.status = "KILLED"
            raise


def _observed(rounds: Iterable[Round], observers: Sequence[Observer]) -> Iterator[Round]:
    """Yield each round once all observers have seen it."""
    for done in rounds:
        for observer in observers:
            observer.after_round(done)
        yield done


class Tracking(Observer):
    """Brings MLflow up to date after each round; a run that cannot begin is not tracked.

    Args:
        tracker: None: the run is not tracked.
        out: the run's folder, which is whole when this is closed.

    Attributes:
        status: of the run, once it has ended.
    """

    def __init__(self, tracker: Tracker | None, out: Path) -> None:
        self.status: Status = "FAILED"
        self._tracker, self._out = tracker, out
        self._has_begun = False

    def after_round(self, done: Round) -> None:
        """Let MLflow have the round soon."""
        self._has_begun = True
        if self._tracker is not None:
            self._tracker.follow(self._out, "RUNNING")

    def close(self) -> None:
        """Let MLflow have all of the run, and wait for it some time."""
        if self._tracker is not None:
            if self._has_begun or self.status == "FINISHED":
                self._tracker.follow(self._out, self.status)
            self._tracker.close()


class Callbacks(Observer):
    """Calls functions of the user with each round, a copy each, so that none changes the record."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    def after_round(self, done: Round) -> None:
        """Call each.

        Raises:
            RunFailed: when one raises an error.
        """
        for callback in self._callbacks:
            try:
                callback(deepcopy(done))
            except Exception as error:
                where = extract_tb(error.__traceback__)[-1]
                name = getattr(callback, "__qualname__", type(callback).__qualname__)
                raise RunFailed(
                    f"the callback {name} failed after round {done.round}: {named(error)} "
                    f"({where.filename}, line {where.lineno}); the rounds until then are kept"
                ) from error


def _each_once(rounds: Iterable[Round]) -> Iterator[Round]:
    """Yield the rounds without repetition: a server that died does its last one again."""
    last = -1
    for done in rounds:
        if done.round > last:
            last = done.round
            yield done
