"""What a run prints: its headline, one line per round, its summary; on a terminal, a bar, too.

The command and the Python interface print the same lines.
"""

from __future__ import annotations

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from fedray.base.activity import Elapsed, Lines
from fedray.base.units import size_of, time_of
from fedray.config import Experiment
from fedray.storage.metric import BEST, HEADLINE, VALIDATION
from fedray.storage.run import Round, Run, Traffic
from fedray.storage.run_folder import RunFolder


def accuracy(done: Round) -> str:
    """Return the text of a round's local accuracy, with that on validation images if measured."""
    validation = done.metrics.get(f"{VALIDATION}{HEADLINE}")
    suffix = "" if validation is None else f" (validation {validation:.4f})"
    return f"accuracy {done.metrics[HEADLINE]:.4f}{suffix}"


def describe(done: Round, *, traffic: bool = True) -> str:
    """Return a short text about a round: accuracy, loss, traffic, faults."""
    parts = []
    if HEADLINE in done.metrics:
        parts.append(accuracy(done))
    if "train_loss" in done.metrics:
        parts.append(f"loss {done.metrics['train_loss']:.3f}")
    up, down = done.up.total_bytes, done.down.total_bytes
    if traffic and (up or down):
        parts.append(f"up {size_of(up)}, down {size_of(down)}")
    if done.absent:
        parts.append(f"{len(done.absent)} absent")
    return ", ".join(parts)


class RoundProgress(Lines):
    """Prints each round when it has finished.

    Args:
        rounds: number of rounds of the run.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._seconds: list[float] = []
        super().__init__(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            Elapsed(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[left]}"),
            total=rounds,
            left="",
        )

    def __call__(self, done: Round) -> None:
        """Print one round."""
        number = done.round
        self._seconds.append(done.seconds)
        steady = self._seconds[2:]  # without round 0 and the first one, which read and import
        remaining = sum(steady) / max(1, len(steady)) * (self._rounds - number)
        left = f"left {time_of(remaining)}" if remaining else ""
        words = describe(done, traffic=self.bar is None)
        self.say(f"round {number}/{self._rounds}  {words}  {time_of(done.seconds)}", left)
        text = "finishing" if number == self._rounds else "training"
        self.update(completed=number, description=text, left=left)


def run_headline(experiment: Experiment, executor: str) -> str:
    """Return the first line of the output, which describes the run."""
    e = experiment
    where = f"{e.workers} Ray worker(s)" if executor == "ray" else "this process"
    plugin_text = f", with {', '.join(plugin.label for plugin in e.plugins)}" if e.plugins else ""
    return (
        f"{e.name}: {e.algorithm.name} on {e.data.source.name}, "
        f"{e.data.clients} clients, {e.rounds} rounds, seed {e.seed}, in {where}{plugin_text}"
    )


def say_line(line: str) -> None:
    """Print a line without buffering."""
    print(line, flush=True)


def accuracy_line(done: Run) -> str:
    """Return a line with a run's accuracy and how its best round was selected; "" without one."""
    best, final = done.best, done.final
    if final is None:
        return ""
    last = f"last {final.local_accuracy:.4f}"
    if best is not None:
        how = BEST[done.info.select]
        return f"\nlocal accuracy: {best.local_accuracy:.4f} in round {best.round} ({how}), {last}"
    return (
        f"\nlocal accuracy: {last}\nno best round: there are no validation images "
        "(data.validation_fraction=0.1), and report.select=test was not set"
    )


def print_summary(out: Path, executor: str) -> None:
    """Print the last lines of the output: accuracy, traffic, times and folders."""
    from fedray.runtime.privacy import privacy_lines

    done = RunFolder(out).read()
    up = Traffic.total(round_.up for round_ in done.rounds)
    down = Traffic.total(round_.down for round_ in done.rounds)
    after = sum(round_.seconds for round_ in done.rounds if round_.round > 0)
    start, on_device = done.costs.startup_seconds, done.costs.peak_device_bytes
    device = f"; of one process on the GPU: {size_of(on_device)}" if on_device else ""
    process = "the server" if executor == "ray" else "this process"
    lines = [
        accuracy_line(done),
        *privacy_lines(done),
        f"sent: up {size_of(up.total_bytes)}, down {size_of(down.total_bytes)}",
        f"time: {time_of(start + after)} ({time_of(start)} to the end of round 0, "
        f"{time_of(after)} for the other rounds)",
        f"peak memory of {process}: {size_of(done.costs.peak_rss_bytes)}{device}",
        f"results: {out}",
    ]
    print("\n".join(lines))
