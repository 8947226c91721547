"""What the driver does while trials run: keep the ledger, feed the tracker, show where it is.

Trials never talk to the tracker. What they report is fed from here, and what an interrupted trial
had already written is read from its folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from ray import cloudpickle, tune
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedray.errors import FedrayError, RunFailed
from fedray.runtime.pool import cause_of
from fedray.sweep.cost import Costs
from fedray.sweep.forecast import Course, Forecast
from fedray.sweep.ledger import DIED, Trial, TrialBook
from fedray.sweep.runs import TrialRuns
from fedray.sweep.seeds import MergedRound
from fedray.sweep.spec import words
from fedray.units import time_of

QUIET_SECONDS = 15
"""In a job's log, a round is shown when nothing was for so long."""


class Watcher(tune.Callback):  # type: ignore[misc]
    """Ray Tune's callback, in the driver.

    Args:
        ledger: where the end of every trial is entered.
        runs: the trials in MLflow; None does not track.
        show: shows progress.
    """

    def __init__(self, ledger: TrialBook, runs: TrialRuns | None, show: SweepProgress) -> None:
        self._ledger = ledger
        self._runs = runs
        self._show = show
        self._started: dict[int, float] = {}
        self._again = False
        self._losses: dict[int, tuple[int | None, int]] = {}

    def take_again(self) -> bool:
        """Whether trials were given up that may be run again; asked once for each."""
        again, self._again = self._again, False
        return again

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray Tune pickles its callbacks for a restore of its own, which we do not use."""
        return {}

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """A trial's actor is there, for the first time or again."""
        entry = self._entry(trial)
        self._account(entry)
        entry.status = "running"
        self._show.begin(entry)
        self._ledger.write()
        if self._runs is None:
            return
        self._runs.start(entry, trial.trial_id)
        for merged in self._rounds(entry):
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
        entry.test, entry.test_std = result["test"], result["test_std"]
        entry.best_rounds, entry.last_round = result["best_rounds"], result["round"]
        self._show.round(entry)

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Let a trial start again whose processes died or whose node is gone, unless too often.

        Ray Tune counts no failures (`tune_trials`): it would count those before the last round.
        """
        why = self._too_often(trial, self._entry(trial))
        if why is not None:
            trial.config["trial"]["given_up"] = why

    def _too_often(self, trial: Any, entry: Trial) -> str | None:
        """Count a loss; return why the trial is given up, or None.

        It is given up after `faults.max_failures` losses in a row without a new round.
        """
        round_, losses = self._losses.get(entry.number, (None, 0))
        losses = losses + 1 if round_ == entry.last_round else 1
        self._losses[entry.number] = entry.last_round, losses
        most = self._ledger.experiment_of(entry).faults.max_failures
        if losses <= most:
            return None
        error = cause_of(_error_of(trial))
        return f"{DIED} {losses} time(s) (faults.max_failures={most}): {error}"

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """A trial is over: at its end, stopped by ASHA, or by an error that it reported."""
        self._settle(self._entry(trial), trial.last_result.get("rounds"))

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Ray Tune gave a trial up: its processes died while it made them ready for the trial."""
        entry = self._entry(trial)
        entry.reason = self._too_often(trial, entry)
        if entry.reason is None:
            entry.status, self._again = "pending", True
        else:
            self._settle(entry, None)

    def _entry(self, trial: Any) -> Trial:
        return self._ledger.trials[trial.config["trial"]["number"]]

    def _account(self, entry: Trial) -> None:
        """Add the time since the last start, and start anew."""
        now = time.monotonic()
        entry.seconds += now - self._started.get(entry.number, now)
        self._started[entry.number] = now

    def _rounds(self, entry: Trial) -> list[MergedRound]:
        """The rounds in a trial's folder; none where it is damaged, for which the trial fails.

        An error in a callback would have Ray Tune start the trial again and again.
        """
        try:
            return self._ledger.rounds_of(entry)
        except FedrayError as error:
            entry.reason = entry.reason or str(error)
            return []

    def _settle(self, entry: Trial, planned: int | None) -> None:
        """Enter how a trial ended, from what its folder holds."""
        self._account(entry)
        rounds = self._rounds(entry)
        self._ledger.measure(entry, rounds)
        if entry.reason is not None:
            entry.status = "failed"
        else:
            ended = entry.last_round == planned or self._ledger.is_whole(entry)
            entry.status = "finished" if ended else "stopped"
        self._ledger.write()
        if self._runs is not None:
            for merged in rounds:
                self._runs.round(entry, merged.mean)
            self._runs.finish(entry)
        self._show.end(entry)


def _error_of(trial: Any) -> Exception:
    """What last ended a trial's actor."""
    with suppress(OSError, TypeError, ImportError, AttributeError):
        with open(trial.pickled_error_file, "rb") as file:
            error = cloudpickle.load(file)
        cause = getattr(error, "cause", None) or error  # of a task's error, what it raised
        if isinstance(cause, Exception):
            return cause
    return RunFailed("its processes died; see Ray's logs")


class SweepProgress:
    """A bar on a terminal; in a job's log a line per finished trial, and a sign of life between.

    Args:
        ledger: says how many trials there are, and which are over already.
        places: how many trials run at a time.
        clock: gives the time in seconds.
    """

    def __init__(
        self, ledger: TrialBook, places: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._costs = Costs(ledger)
        self._clock = clock
        self._last_line = clock()
        self._forecast = Forecast(places, stops=ledger.stops_early)
        self._courses: dict[int, Course] = {}
        self._typical = Course(1.0, ledger.usual_rounds)
        for trial in self.order():
            self._course(trial)
        self._bar: Progress | None = None
        if sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("trials {task.fields[done]}"),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
                TextColumn("{task.fields[left]}"),
                console=Console(),
            )

    def __enter__(self) -> SweepProgress:
        if self._bar is not None:
            done = f"0/{self._ledger.total}"
            self._task = self._bar.add_task("starting", total=1.0, done=done, left="")
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

    def order(self) -> list[Trial]:
        """The trials that are left, in the order in which they should begin."""
        return self._costs.in_order(self._ledger.open)

    def begin(self, trial: Trial) -> None:
        """A trial's actor is there, for the first time or again."""
        self._forecast.begin(self._course(trial), self._clock())

    def round(self, trial: Trial) -> None:
        """A trial has finished a round."""
        course = self._course(trial)
        course.done = trial.last_round or 0
        course.reports.append((course.done, self._clock()))
        self._update()
        if self._bar is None and self._clock() - self._last_line >= QUIET_SECONDS:
            self._print(
                f"running  {words(trial.config)}  round {trial.last_round}/{course.rounds}  "
                f"{self._ledger.how} {trial.objective:.4f} so far"
            )

    def end(self, trial: Trial) -> None:
        """A trial is over."""
        self._course(trial).ended = self._clock()
        self._update()
        over = sum(other.is_over for other in self._ledger.ordered)
        line = f"{over}/{self._ledger.total} over  {words(trial.config)}  "
        if trial.status == "failed":
            line += f"failed: {trial.reason}"
        else:
            line += f"{self._ledger.how} {trial.objective:.4f} (round {trial.when})"
            if trial.status == "stopped":
                line += f"  stopped in round {trial.last_round}"
        self._print(f"{line}  {time_of(trial.seconds)}")

    def left(self) -> float | None:
        """Seconds left; None while nothing has shown how long a round takes."""
        return self._forecast.left(self._all_courses(), self._clock())

    def _all_courses(self) -> list[Course]:
        """Of every trial, also of those that are to be suggested, of which no more is known."""
        for trial in self._ledger.open:
            self._course(trial)
        missing = self._ledger.total - len(self._ledger.trials)
        return [*self._courses.values(), *([self._typical] * missing)]

    def _course(self, trial: Trial) -> Course:
        """A trial's course; where the search has just suggested it, a new one."""
        if trial.number not in self._courses:
            weight, rounds = self._costs.round(trial), self._costs.rounds(trial)
            self._courses[trial.number] = Course(weight, rounds, done=trial.last_round or 0)
            weights = [each.weight for each in self._courses.values()]
            self._typical.weight = sum(weights) / len(weights)
        return self._courses[trial.number]

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
            return
        left = self.left()
        print(line + (f"  left {time_of(left)}" if left else ""), flush=True)
        self._last_line = self._clock()

    def _update(self) -> None:
        if self._bar is None:
            return
        best, left = self._ledger.leading, self.left()
        over = sum(trial.is_over for trial in self._ledger.ordered)
        courses = self._all_courses()
        whole = sum(each.weight * each.rounds for each in courses)
        done = sum(
            each.weight * (each.rounds if each.ended is not None else each.done) for each in courses
        )
        self._bar.update(
            self._task,
            completed=done / whole,
            description=f"best {best.objective:.4f} ({words(best.config)})" if best else "training",
            done=f"{over}/{self._ledger.total}",
            left="" if left is None else f"left {time_of(left)}",
        )
