"""Progress of a run: one line per round, and on a terminal a bar below the lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.text import Text

from fedray.activity import end_waiting, seconds_of
from fedray.records import HEADLINE, VALIDATION, Round
from fedray.units import size_of, time_of


def accuracy(done: Round) -> str:
    """Return the local accuracy of a round, on validation images too where there are some."""
    held = done.metrics.get(f"{VALIDATION}{HEADLINE}")
    beside = "" if held is None else f" (validation {held:.4f})"
    return f"accuracy {done.metrics[HEADLINE]:.4f}{beside}"


def describe(done: Round, *, traffic: bool = True) -> str:
    """Return one round in a few words: accuracy, loss, traffic, faults."""
    words = []
    if HEADLINE in done.metrics:
        words.append(accuracy(done))
    if "train_loss" in done.metrics:
        words.append(f"loss {done.metrics['train_loss']:.3f}")
    up, down = done.up.total_bytes, done.down.total_bytes
    if traffic and (up or down):
        words.append(f"up {size_of(up)}, down {size_of(down)}")
    if done.events:
        words.append(f"{len(done.events)} fault(s)")
    return ", ".join(words)


class Pace:
    """Seconds left of a run, by the mean of its rounds without the first that is seen.

    That one, and what comes before it, costs what no other does: imports, first decoding, round 0.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._seen: list[tuple[int, float]] = []

    def left(self, done: int, now: float) -> float | None:
        """Seconds left after a round; None before there is anything to judge by.

        Args:
            done: the round's number.
            now: the time.
        """
        self._seen.append((done, now))
        if len(self._seen) < 3:
            return None
        first, began = self._seen[1]
        return (now - began) / (done - first) * (self._rounds - done)


class Elapsed(ProgressColumn):
    """Seconds since the bar is there, which move while nothing else does."""

    def render(self, task: Task) -> Text:
        """Return the seconds of one bar."""
        return Text(seconds_of(task.elapsed or 0))


class RoundProgress:
    """Shows rounds as they come.

    Args:
        rounds: T.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._pace = Pace(rounds)
        self._bar: Progress | None = None
        if sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                Elapsed(),
                TextColumn("{task.description}"),
                TextColumn("{task.fields[left]}"),
                console=Console(),
            )
            self._task = self._bar.add_task("starting", total=rounds, left="")

    def __enter__(self) -> RoundProgress:
        if self._bar is not None:
            end_waiting()
            self._bar.start()
        return self

    def __call__(self, done: Round) -> None:
        """Show one round."""
        number = done.round
        seconds = self._pace.left(number, time.monotonic())
        left = "" if seconds is None or number == self._rounds else f"left {time_of(seconds)}"
        words = describe(done, traffic=self._bar is None)
        line = f"round {number}/{self._rounds}  {words}  {time_of(done.seconds)}"
        if self._bar is None:
            print(f"{line}  {left}".rstrip(), flush=True)
            return
        self._bar.console.print(line, highlight=False, markup=False)
        text, left = ("finishing", "") if number == self._rounds else ("training", left)
        self._bar.update(self._task, completed=number, description=text, left=left)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
