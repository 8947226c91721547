"""A study and how its runs ended: finished runs lie in the store, the rest is in its folder.

    <results>/<sweep>/<scale>/          plan.json, trials.csv, sweep.png, best.yaml
    <results>/tables/<table>/<scale>/   plan.json, table.md, table.tex, ...

A run's folder alone tells whether the run has finished. plan.json records the plan, and of this
study's runs what their folders do not tell: which ones failed, and why; which ones a scheduler
stopped; and the configurations that Optuna suggested.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from fedray.base.errors import UserError, named
from fedray.config import validate
from fedray.results.design import Config
from fedray.results.labels import config_label
from fedray.results.record import DIVERGED, Measured
from fedray.storage.files import read_regular, sealed, unsealed, write_json
from fedray.storage.metric import Metric
from fedray.storage.run_folder import RunFolder
from fedray.studies.cell import CellState, cell_states, next_runs
from fedray.studies.plan import RunSpec, StudyPlan
from fedray.studies.store import Published, read_measured

FILE = "plan.json"
FORMAT = 5
Status = Literal["pending", "running", "finished", "stopped", "failed"]


@dataclass
class StudyRun:
    """A run that this process has begun, for its progress.

    Attributes:
        spec: the run.
        objective: the value that chooses, so far.
        round: the round of `objective`.
        last_round: the last finished round.
        seconds: time from the beginning to the end.
        is_over: whether the run has ended.
    """

    spec: RunSpec
    objective: float | None = None
    round: int | None = None
    last_round: int | None = None
    seconds: float = 0.0
    is_over: bool = False


@dataclass
class Study:
    """A study: its plan, and how its runs ended.

    Attributes:
        home: the study's folder.
        plan: the plan.
        store: the folder of all runs.
        command: the command that ran the study last.
        published: published tables whose runs are reused.
        began: local time at which this plan was first run.
        status: failed: runs have failed that may succeed when the same command is given again.
        seconds: time of runs by key, over all commands.
        failures: reasons of failed runs by key.
        stopped: keys of runs that a scheduler stopped, which stay so.
        suggested: configurations that Optuna suggested, in order; it may repeat one.
        runs: the runs that this process began, by key.
        declared: declarations of the metrics of the results that were read, by name.
    """

    home: Path
    plan: StudyPlan
    store: Path
    command: str = ""
    published: Sequence[Published] = ()
    began: str = field(default_factory=lambda: datetime.now().isoformat(timespec="seconds"))
    status: Literal["running", "failed", "finished"] = "running"
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    suggested: list[Config] = field(default_factory=list)
    runs: dict[str, StudyRun] = field(default_factory=dict)
    declared: dict[str, Metric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ends: dict[tuple[str, str, str], Measured | str | None] = {}
        self._states: list[CellState] | None = None
        self._sources: dict[str, Published] = {}  # the published table by key of a reused run

    def folder(self, key: str) -> Path:
        """Return the folder of a run."""
        return self.store / key

    # --- ends of runs -----------------------------------------------------------------------------

    def end_of(self, spec: RunSpec) -> Measured | str | None:
        """Return a run's result for its row, or why it has none; None until it has ended.

        The result may be that of a published table.
        """
        if spec.key in self.failures:
            return self.failures[spec.key]
        name = spec.key, spec.place.row, spec.phase
        if name not in self._ends:
            self._ends[name] = self._find_end(spec)
        return self._ends[name]

    def _find_end(self, spec: RunSpec) -> Measured | str | None:
        if RunFolder(self.folder(spec.key)).is_finished or spec.key in self.stopped:
            try:
                found, metrics = read_measured(self.folder(spec.key), self.plan, spec.place.row)
            except UserError as error:  # damaged, or it lacks a metric of the row
                return str(error)
            self.declared |= metrics
            return found
        for table in self.published:
            if (result := table.find(spec, self.plan)) is not None:
                self.declared |= table.record.metrics
                self._sources[spec.key] = table
                return result
        return None

    @property
    def taken(self) -> dict[str, Published]:
        """The published table by key of each run that is reused and was not run again."""
        return {key: table for key, table in self._sources.items() if key not in self.runs}

    def tell(self, spec: RunSpec, reason: str = "", *, is_stopped: bool = False) -> None:
        """Record the end of a run: by itself, for a reason, or by a scheduler."""
        if reason:
            self.failures[spec.key] = reason
        if is_stopped:
            self.stopped.add(spec.key)
        for name in [name for name in self._ends if name[0] == spec.key]:
            del self._ends[name]
        self._states = None
        if (run := self.runs.get(spec.key)) is not None:
            run.is_over = True
            end = self.end_of(spec)
            if isinstance(end, Measured):
                run.objective, run.round = end.choice, end.round
            self.seconds[spec.key] = self.seconds.get(spec.key, 0.0) + run.seconds

    def status_of(self, spec: RunSpec) -> Status:
        """Return the status of a run."""
        if isinstance(self.end_of(spec), str):
            return "failed"
        if spec.key in self.stopped:
            return "stopped"
        if self.end_of(spec) is not None:
            return "finished"
        return "running" if spec.key in self.runs else "pending"

    # --- cells and the next runs ------------------------------------------------------------------

    @property
    def states(self) -> list[CellState]:
        """The state of every cell."""
        if self._states is None:
            self._states = cell_states(self.plan, self.end_of, self.configs, self.to_suggest)
        return self._states

    @property
    def configs(self) -> Sequence[Config]:
        """The configurations of a sweep, each once; with Optuna, those suggested so far."""
        if not self.plan.uses_optuna:
            return self.plan.configurations(self.plan.places[0].row)
        return [c for n, c in enumerate(self.suggested) if c not in self.suggested[:n]]

    @property
    def to_suggest(self) -> int:
        """The number of configurations that Optuna has still to suggest."""
        wanted = self.plan.tuning.configurations or 0
        return wanted - len(self.suggested) if self.plan.uses_optuna else 0

    def suggest(self, config: Config) -> None:
        """Record a configuration that Optuna suggested."""
        self.suggested.append(config)
        self._states = None

    def ask(self) -> RunSpec | None:
        """Return the next run that this process has not begun; None while there is none.

        A sweep begins its finished runs, too, so that Ray Tune has all its results.
        """
        ends = self._failure_of if self.plan.is_sweep else self.end_of
        ready = (run for run in next_runs(self.plan, ends) if run.key not in self.runs)
        return next(ready, None)

    def _failure_of(self, spec: RunSpec) -> str | None:
        return self.failures.get(spec.key)

    @property
    def needed(self) -> dict[str, RunSpec]:
        """All runs that cells have needed so far, by key."""
        runs: dict[str, RunSpec] = {}
        for run in (run for state in self.states for run in state.runs + state.pending):
            runs.setdefault(run.key, run)
        return runs

    @property
    def total(self) -> int:
        """Number of runs, as far as known."""
        return len(self.needed) + sum(state.further for state in self.states)

    @property
    def remaining(self) -> int:
        """Number of runs that have not ended, as far as known."""
        return self.total - sum(self.end_of(run) is not None for run in self.needed.values())

    @property
    def is_complete(self) -> bool:
        """True if every cell is finished."""
        return all(state.phase in ("over", "failed") for state in self.states)

    @property
    def reasons(self) -> list[str]:
        """All distinct reasons of missing results."""
        ends = map(self.end_of, self.needed.values())
        return list(dict.fromkeys(end for end in ends if isinstance(end, str)))

    @property
    def repeatable(self) -> list[str]:
        """Keys of the runs that failed, but did not diverge, and may succeed when repeated."""
        return [key for key, why in self.failures.items() if not why.startswith(DIVERGED)]

    def name_of(self, run: RunSpec) -> str:
        """Return a short name of a run for messages."""
        config = f"{config_label(run.config)} " if run.config else ""
        if self.plan.is_sweep:
            return f"{config}seed={run.seed}"
        return f"{run.place}, {run.phase}: {config}seed={run.seed}"

    # --- the file ---------------------------------------------------------------------------------

    def write(self) -> None:
        """Replace plan.json in one step."""
        tree = {
            "format": FORMAT,
            "status": self.status,
            "began": self.began,
            "command": self.command,
            "store": str(self.store),
            "seconds": self.seconds,
            "failures": self.failures,
            "stopped": sorted(self.stopped),
            "suggested": self.suggested,
            "plan": self.plan.model_dump(mode="json"),
        }
        self.home.mkdir(parents=True, exist_ok=True)
        parsed = json.loads(json.dumps(tree))  # as read from a file: all keys are strings
        write_json(self.home / FILE, sealed(parsed))

    @classmethod
    def read(cls, home: Path) -> Study:
        """Read a study's plan.json.

        Raises:
            UserError: if the file does not exist or cannot be read.
        """
        path = home / FILE
        keys = ("status", "began", "command", "seconds", "failures", "suggested")
        try:
            tree = unsealed(json.loads(read_regular(path)))
            if tree["format"] != FORMAT:
                raise ValueError(f"format {tree['format']}, not {FORMAT}")
            facts: dict[str, Any] = {key: tree[key] for key in keys}
            store, stopped = _store_of(home, Path(tree["store"])), set(tree["stopped"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(
                f"{path} cannot be read ({named(error)}); name the folder of a sweep or table, or "
                "remove the file"
            ) from None
        plan = validate(StudyPlan, tree["plan"], str(path))
        return cls(home, plan, store, stopped=stopped, **facts)


def _store_of(home: Path, recorded: Path) -> Path:
    """Return the folder of a study's runs: the recorded one, or that of moved results."""
    results = home.resolve().parent.parent
    moved = (results.parent if results.name == "tables" else results) / "store"
    return moved if moved.is_dir() and not recorded.is_dir() else recorded
