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
    """Display of a study's progress, and of the remaining time by the mean of the ended runs.

    Args:
        study: the study.
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
        """Show that a run has ended."""
        self._update()
        name, end = self._study.name_of(run.spec), self._study.end_of(run.spec)
        line = f"{self._ended()}/{self._study.total} over  {name}  "
        if isinstance(end, str) or run.objective is None:
            line += f"failed: {end}"
        else:
            line += f"{self._objective_text(run.objective)} (round {run.round})"
            if run.spec.key in self._study.stopped:
                line += f"  stopped in round {run.last_round}"
        self._print(f"{line}  {time_of(run.seconds)}")

    def remaining_seconds(self) -> float | None:
        """Return the estimated remaining seconds; None until a run has ended."""
        runs = [run for run in self._study.runs.values() if run.is_over and run.seconds]
        if not runs:
            return None
        pace = sum(run.seconds for run in runs) / sum(run.spec.cost for run in runs)
        needed = self._study.needed.values()
        mean_cost = sum(spec.cost for spec in needed) / len(needed)
        return pace * mean_cost * self._study.remaining / self._concurrent

    def _objective_text(self, objective: float) -> str:
        return f"{self._study.plan.how} {objective:.4f}"

    def _ended(self) -> int:
        return self._study.total - self._study.remaining

    def _print(self, line: str) -> None:
        remaining = self.remaining_seconds()
        self.say(line, f"left {time_of(remaining)}" if remaining else "")
        self._last_line = self._clock()

    def _update(self) -> None:
        if self.bar is None:
            return
        remaining, total = self.remaining_seconds(), self._study.total
        self.update(
            completed=self._ended() / max(total, 1),
            description="training",
            done=f"{self._ended()}/{total}",
            left="" if remaining is None else f"left {time_of(remaining)}",
        )
