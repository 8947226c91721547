"""How a run shows where it is: a bar on a terminal, one plain line per round in a job's log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def describe(record: Mapping[str, Any]) -> str:
    """One round in a few words: accuracy, loss, traffic, faults."""
    metrics = record["metrics"]
    words = []
    if "local_accuracy" in metrics:
        words.append(f"accuracy {metrics['local_accuracy']:.4f}")
    if "train_loss" in metrics:
        words.append(f"loss {metrics['train_loss']:.3f}")
    if record["up_bytes"] or record["down_bytes"]:
        words.append(f"up {megabytes(record['up_bytes'])}, down {megabytes(record['down_bytes'])}")
    if record["events"]:
        words.append(f"{len(record['events'])} fault(s)")
    return ", ".join(words)


def megabytes(count: float) -> str:
    """A size in bytes, for people."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


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

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Show one round."""
        number = record["round"]
        if self._bar is not None:
            accuracy = record["metrics"].get("local_accuracy")
            text = f"accuracy {accuracy:.4f}" if accuracy is not None else "training"
            self._bar.update(self._task, completed=number, description=text)
            return
        line = f"round {number}/{self._rounds}  {describe(record)}  {record['seconds']:.1f} s"
        if self._first is None:
            self._first, self._started = number, time.monotonic()
        else:
            pace = (time.monotonic() - self._started) / (number - self._first)
            line += f"  left {pace * (self._rounds - number):.0f} s"
        print(line, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
