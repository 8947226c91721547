"""What the driver does while trials run: keep the ledger, feed the tracker, show where it is.

Trials never talk to the tracker. What they report is fed from here, and what an interrupted trial
had already written is read from its folder.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from ray import tune
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.runs import SweepRuns, replay
from fedray.sweep.seeds import MergedRound, read_merged
from fedray.sweep.spec import words

__all__ = ["SweepProgress", "Watcher", "replay"]

QUIET_SECONDS = 15
"""In a job's log, a round is shown when nothing was for so long."""


class Watcher(tune.Callback):  # type: ignore[misc]
    """Ray Tune's callback, in the driver.

    Args:
        ledger: where the end of every trial is entered.
        runs: the sweep in MLflow; None does not track.
        show: shows progress.
    """

    def __init__(self, ledger: Ledger, runs: SweepRuns | None, show: SweepProgress) -> None:
        self._ledger = ledger
        self._runs = runs
        self._show = show
        self._started: dict[int, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray Tune pickles its callbacks for a restore of its own, which we do not use."""
        return {}

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """A trial's actor is there, for the first time or again."""
        entry = self._entry(trial)
        self._account(entry)
        entry.status = "running"
        self._ledger.write()
        if self._runs is None:
            return
        self._runs.start(entry, trial.trial_id)
        for merged in self._merged(entry):
            self._runs.round(entry, merged.mean)

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial has finished a round, or says why it failed."""
        entry = self._entry(trial)
        if "failed" in result:
            entry.reason = str(result["failed"])
            return
        if entry.startup_seconds is None:
            entry.startup_seconds = time.monotonic() - self._started[entry.number]
        if self._runs is not None:
            for mean in result["means"]:
                self._runs.round(entry, mean)
        entry.objective, entry.std = result["objective"], result["objective_std"]
        entry.best_rounds, entry.last_round = result["best_rounds"], result["round"]
        self._show.round(entry, self._ledger)

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """A trial is over: at its end, stopped by ASHA, or by an error that it reported."""
        self._settle(self._entry(trial), trial.last_result.get("rounds"))

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """A trial's processes died more often than it may survive."""
        entry = self._entry(trial)
        lines = str(trial.get_error() or "").strip().splitlines()
        entry.reason = lines[0] if lines else "its processes died; see Ray's logs"
        self._settle(entry, None)

    def _entry(self, trial: Any) -> Trial:
        return self._ledger.trials[trial.config["trial"]["number"]]

    def _merged(self, entry: Trial) -> list[MergedRound]:
        return read_merged(self._ledger.home / entry.name, self._ledger.plan)

    def _account(self, entry: Trial) -> None:
        """Add the time since the last start, and start anew."""
        now = time.monotonic()
        entry.seconds += now - self._started.get(entry.number, now)
        self._started[entry.number] = now

    def _settle(self, entry: Trial, planned: int | None) -> None:
        """Enter how a trial ended, from what its folder holds."""
        self._account(entry)
        rounds = self._merged(entry)
        entry.measure(rounds, self._ledger.plan)
        if entry.reason is not None:
            entry.status = "failed"
        else:
            entry.status = "finished" if entry.last_round == planned else "stopped"
        self._ledger.write()
        if self._runs is not None:
            for merged in rounds:
                self._runs.round(entry, merged.mean)
            self._runs.finish(entry)
        self._show.end(entry, self._ledger)


class SweepProgress:
    """A bar on a terminal; in a job's log a line per finished trial, and a sign of life between.

    Args:
        ledger: says how many trials there are, and which are over already.
        rounds: how many each has.
    """

    def __init__(self, ledger: Ledger, rounds: int) -> None:
        self._trials = ledger.total
        self._rounds = rounds
        self._before = self._done(ledger)
        self._began = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("trials {task.fields[done]}"),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(),
            )

    def __enter__(self) -> SweepProgress:
        if self._bar is not None:
            total = self._trials * self._rounds
            self._task = self._bar.add_task("starting", total=total, done=f"0/{self._trials}")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def round(self, trial: Trial, ledger: Ledger) -> None:
        """A trial has finished a round."""
        self._update(ledger)
        if self._bar is None and time.monotonic() - self._last_line >= QUIET_SECONDS:
            self._print(
                f"running  {words(trial.config)}  round {trial.last_round}/{self._rounds}  "
                f"best {trial.objective:.4f} so far",
                ledger,
            )

    def end(self, trial: Trial, ledger: Ledger) -> None:
        """A trial is over."""
        self._update(ledger)
        over = sum(other.is_over for other in ledger.ordered)
        line = f"{over}/{self._trials} over  {words(trial.config)}  "
        if trial.status == "failed":
            line += f"failed: {trial.reason}"
        else:
            line += f"best {trial.objective:.4f} (round {trial.when})"
            if trial.status == "stopped":
                line += f"  stopped in round {trial.last_round}"
        self._print(f"{line}  {trial.seconds:.0f} s", ledger)

    def _print(self, line: str, ledger: Ledger) -> None:
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
            return
        left = self._left(ledger)
        print(line + (f"  left {left:.0f} s" if left else ""), flush=True)
        self._last_line = time.monotonic()

    def _done(self, ledger: Ledger) -> int:
        """Rounds that need not be run any more, over all trials."""
        return sum(
            self._rounds if trial.is_over else trial.last_round or 0 for trial in ledger.ordered
        )

    def _left(self, ledger: Ledger) -> float | None:
        """Seconds left at the pace so far; None while that is only start-up."""
        done, total = self._done(ledger), self._trials * self._rounds
        new = done - self._before
        if new * 20 < total:
            return None
        return (time.monotonic() - self._began) / new * (total - done)

    def _update(self, ledger: Ledger) -> None:
        if self._bar is None:
            return
        best, over = ledger.leading, sum(trial.is_over for trial in ledger.ordered)
        text = f"best {best.objective:.4f} ({words(best.config)})" if best else "training"
        self._bar.update(
            self._task,
            completed=self._done(ledger),
            description=text,
            done=f"{over}/{self._trials}",
        )
