"""How a run shows where it is: a bar on a terminal, one plain line per round in a job's log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedray.records import HEADLINE, VALIDATION, Round
from fedray.units import size_of, time_of


def accuracy(done: Round) -> str:
    """The local accuracy of an evaluated round, on validation images too where there are some."""
    held = done.metrics.get(f"{VALIDATION}{HEADLINE}")
    beside = "" if held is None else f" (validation {held:.4f})"
    return f"accuracy {done.metrics[HEADLINE]:.4f}{beside}"


def describe(done: Round) -> str:
    """One round in a few words: accuracy, loss, traffic, faults."""
    words = []
    if HEADLINE in done.metrics:
        words.append(accuracy(done))
    if "train_loss" in done.metrics:
        words.append(f"loss {done.metrics['train_loss']:.3f}")
    up, down = done.up.total_bytes, done.down.total_bytes
    if up or down:
        words.append(f"up {size_of(up)}, down {size_of(down)}")
    if done.events:
        words.append(f"{len(done.events)} fault(s)")
    return ", ".join(words)


class RoundProgress:
    """Shows rounds as they come.

    Args:
        rounds: T.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._started = time.monotonic()
        self._first: int | None = None
        self._bar: Progress | None = None
        if sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(),
            )
            self._task = self._bar.add_task("starting", total=rounds)

    def __enter__(self) -> RoundProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __call__(self, done: Round) -> None:
        """Show one round."""
        number = done.round
        if self._bar is not None:
            text = accuracy(done) if HEADLINE in done.metrics else "training"
            self._bar.update(self._task, completed=number, description=text)
            return
        line = f"round {number}/{self._rounds}  {describe(done)}  {time_of(done.seconds)}"
        if self._first is None:
            self._first, self._started = number, time.monotonic()
        else:
            pace = (time.monotonic() - self._started) / (number - self._first)
            line += f"  left {time_of(pace * (self._rounds - number))}"
        print(line, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
