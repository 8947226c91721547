"""Progress of a study: a bar on a terminal; lines for finished runs and rounds in a log."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from fedray.base.activity import Lines
from fedray.base.units import time_of
from fedray.studies.study import Study, StudyRun

QUIET_SECONDS = 15
"""In a log, a round is printed if nothing was printed for this time."""


class Progress(Lines):
    """Display of a study's progress, and of the remaining time at the mean pace of its runs.

    Args:
        study: the study, with its runs.
        concurrent: number of concurrent runs.
        clock: returns the time in seconds.
    """

    def __init__(
        self, study: Study, concurrent: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._study = study
        self._concurrent = concurrent
        self._clock = clock
        self._last_line = clock()
        self._began: dict[int, float] = {}
        self._paces: list[float] = []
        super().__init__(
            TextColumn("runs {task.fields[done]}"),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[left]}"),
            total=1.0,
            done=f"0/{study.total}",
            left="",
        )

    def begin(self, run: StudyRun) -> None:
        """Record the time at which a run's actor started or restarted."""
        self._began[run.number] = self._clock()

    def round(self, run: StudyRun) -> None:
        """Show that a run has finished a round."""
        self._update()
        if self.bar is None and self._clock() - self._last_line >= QUIET_SECONDS:
            so_far = (
                "" if run.objective is None else f"  {self._objective_text(run.objective)} so far"
            )
            rounds = run.spec.experiment.rounds
            name = self._study.name_of(run.spec)
            self._print(f"running  {name}  round {run.last_round}/{rounds}{so_far}")

    def end(self, run: StudyRun) -> None:
        """Show that a run has finished."""
        began = self._began.pop(run.number, None)
        if began is not None and run.status == "finished":
            self._paces.append((self._clock() - began) / run.cost)
        self._update()
        line = f"{self._ended_runs()}/{self._study.total} over  {self._study.name_of(run.spec)}  "
        if run.status == "failed" or run.objective is None:
            line += f"failed: {run.reason}"
        else:
            line += f"{self._objective_text(run.objective)} (round {run.round})"
            if run.status == "stopped":
                line += f"  stopped in round {run.last_round}"
        self._print(f"{line}  {time_of(run.seconds)}")

    def remaining_seconds(self) -> float | None:
        """Return the estimated remaining seconds; None until a run has finished."""
        if not self._paces:
            return None
        runs = self._study.runs.values()
        costs = [run.cost for run in runs]
        unknown = self._study.total - len(costs)
        mean_cost = sum(costs) / len(costs)
        work = sum(run.cost for run in runs if not run.is_over) + unknown * mean_cost
        pace = sum(self._paces) / len(self._paces)
        now = self._clock()
        elapsed = sum(min(now - began, pace * mean_cost) for began in self._began.values())
        return max(pace * work - elapsed, 0.0) / self._concurrent

    def _objective_text(self, objective: float) -> str:
        return f"{self._study.plan.how} {objective:.4f}"

    def _ended_runs(self) -> int:
        return sum(run.is_over for run in self._study.runs.values())

    def _print(self, line: str) -> None:
        remaining = self.remaining_seconds()
        self.say(line, f"left {time_of(remaining)}" if remaining else "")
        self._last_line = self._clock()

    def _update(self) -> None:
        if self.bar is None:
            return
        remaining, total = self.remaining_seconds(), self._study.total
        self.update(
            completed=self._ended_runs() / max(total, 1),
            description="training",
            done=f"{self._ended_runs()}/{total}",
            left="" if remaining is None else f"left {time_of(remaining)}",
        )
