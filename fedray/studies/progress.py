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
            rounds, so_far = run.spec.experiment.rounds, self._objective(run.objective)
            name = self._study.name_of(run.spec)
            self._print(f"running  {name}  round {run.last_round}/{rounds}{so_far}")

    def end(self, run: StudyRun) -> None:
        """Show that a run has ended."""
        self._update()
        end, study = self._study.end_of(run.spec), self._study
        line = f"{self._ended()}/{study.total} over  {study.name_of(run.spec)}"
        if isinstance(end, str):
            line += f"  failed: {end}"
        else:
            stopped = run.spec.key in study.stopped
            line += f"{self._objective(run.objective)} (round {run.round})"
            line += f"  stopped in round {run.last_round}" if stopped else ""
        self._print(f"{line}  {time_of(run.seconds)}")

    def remaining_seconds(self) -> float | None:
        """Return the estimated remaining seconds; None until a run has ended."""
        ended = [run for run in self._study.runs.values() if run.is_over and run.seconds]
        if not ended:
            return None
        pace = sum(run.seconds for run in ended) / sum(run.spec.cost for run in ended)
        costs = [spec.cost for spec in self._study.needed.values()]
        return pace * sum(costs) / len(costs) * self._study.remaining / self._concurrent

    def _objective(self, objective: float | None) -> str:
        return "" if objective is None else f"  {self._study.plan.how} {objective:.4f}"

    def _ended(self) -> int:
        return self._study.total - self._study.remaining

    def _left(self) -> str:
        remaining = self.remaining_seconds()
        return f"left {time_of(remaining)}" if remaining else ""

    def _print(self, line: str) -> None:
        self.say(line, self._left())
        self._last_line = self._clock()

    def _update(self) -> None:
        total = max(1, self._study.total)
        done = f"{self._ended()}/{total}"
        share = self._ended() / total
        self.update(completed=share, description="training", done=done, left=self._left())
