"""The state of one invocation of a study: finished runs, next runs, and their folders.

    <results>/<sweep>/<invocation>/plan.json, trials.csv, sweep.png, best.yaml
    <results>/tables/<table>/<invocation>/plan.json, table.md, table.tex, ...
                                          from-0.json     copy of a table whose runs are reused

A run's folder alone tells whether the run has finished. plan.json holds the plan, the reasons of
failed runs, and the time spent on runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedray.base.errors import UserError, named
from fedray.config import Tree, validate
from fedray.results.labels import config_label
from fedray.results.record import DIVERGED, Measured, TableRecord
from fedray.storage.files import CHECKSUM, read_regular, sealed, unsealed, write_json
from fedray.storage.metric import Metric
from fedray.storage.run_folder import RunFolder
from fedray.studies.cell import Cell, CellState, RunEnd, RunSpec, cell_of
from fedray.studies.plan import Phase, StudyPlan
from fedray.studies.store import Published, read_measured

FILE = "plan.json"
TRIAL_LOCK = ".trial.lock"
"""File in a run's folder that is locked while a trial runs it."""
FORMAT = 2
DIED = "it died"
"""First words of the reason of a run whose processes died."""
EndStatus = Literal["finished", "stopped", "failed"]
Status = Literal["pending", "running"] | EndStatus


@dataclass(frozen=True)
class End:
    """The end of a run; final unless a resumed study repeats the run.

    Attributes:
        status: how it ended; stopped: by ASHA.
        reason: why it failed, for all rows.
        is_stored: True if the study found the run finished in the store.
    """

    status: EndStatus
    reason: str = ""
    is_stored: bool = False


@dataclass
class StudyRun:
    """A run that a study begins, or has begun.

    Attributes:
        number: index from 0, in the order in which cells needed the runs.
        spec: the run, as the first cell that needs it describes it.
        folder: the run's folder.
        status: pending: not begun, or interrupted.
        objective: the value that chooses, so far.
        round: the round of `objective`.
        last_round: the last finished round.
        reason: why the run failed.
        seconds: time from the start of its actor to its end, over all attempts.
        ray_id: Ray Tune's name of the trial.
    """

    number: int
    spec: RunSpec
    folder: Path
    status: Status = "pending"
    objective: float | None = None
    round: int | None = None
    last_round: int | None = None
    reason: str | None = None
    seconds: float = 0.0
    ray_id: str | None = None

    @property
    def is_over(self) -> bool:
        """True if the run has ended: finished, stopped or failed."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def cost(self) -> int:
        """Relative cost of the run: rounds times epochs."""
        experiment = self.spec.experiment
        return experiment.rounds * max(1, experiment.local_epochs)


@dataclass
class Study:
    """One invocation of a study.

    Only `look`, `ask` and `tell` change what is known of runs. A cell's state is computed from the
    ends of its runs.

    Attributes:
        home: the invocation's folder.
        plan: the plan.
        store: the folder of all runs.
        command: the command that began the invocation.
        arguments: the keys of that command, which a resuming command must repeat or leave out.
        status: running until every cell has finished; failed: runs that may succeed when repeated
            have failed, and --resume tries them again.
        began: local time.
        seconds: time of this invocation's runs by key, start-up included.
        ends: the ends of runs by key.
        suggested: configurations suggested by tpe, in order.
        published: published tables whose runs are reused.
        runs: runs of this invocation by key, in the order of their numbers.
        begun: Ray Tune's names of the trials that the process of the last `write` began, by key of
            the run.
        declared: declarations of the metrics of the results that were read, by name.
    """

    home: Path
    plan: StudyPlan
    store: Path
    command: str = ""
    arguments: Tree = field(default_factory=dict)
    status: Literal["running", "failed", "finished"] = "running"
    began: str = field(default_factory=lambda: datetime.now().isoformat(timespec="seconds"))
    seconds: dict[str, float] = field(default_factory=dict)
    ends: dict[str, End] = field(default_factory=dict)
    suggested: list[Tree] = field(default_factory=list)
    published: Sequence[Published] = ()
    runs: dict[str, StudyRun] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cells = [cell_of(self.plan, place) for place in self.plan.places]
        if self.plan.tuning.search == "tpe":
            self.cells[0].first = self.suggested
        self._results: dict[tuple[str, str], Measured | str] = {}
        self._found: dict[
            tuple[str, str, Phase], tuple[Published | None, Measured | str | None]
        ] = {}
        self._states: dict[int, CellState] = {}
        self._asking: dict[str, set[int]] = {}  # the cells whose states depend on a run, by key
        self.declared: dict[str, Metric] = {}

    # --- results of runs --------------------------------------------------------------------------

    def folder(self, key: str) -> Path:
        """Return the folder of a run."""
        return self.store / key

    def _result(self, key: str, row: str) -> Measured | str | None:
        """Return a run's result for a row, or why the row has none; None until it has ended."""
        end = self.ends.get(key)
        if end is None or end.status == "failed":
            return None if end is None else end.reason
        if (key, row) not in self._results:
            try:
                found, metrics = read_measured(self.folder(key), self.plan, row)
                self._results[key, row] = found
                self.declared |= metrics
            except UserError as error:  # damaged, or it lacks a metric of the row
                self._results[key, row] = str(error)
        return self._results[key, row]

    def outcome_of(self, spec: RunSpec) -> Measured | str | None:
        """Return a run's result for its row, or why it failed; None until it has ended.

        The result may be that of a published table.
        """
        result = self._result(spec.key, spec.place.row)
        return result if result is not None else self._find_published(spec)[1]

    def _find_published(self, spec: RunSpec) -> tuple[Published | None, Measured | str | None]:
        """Return the first published table with a run, and its result."""
        name = spec.key, spec.place.row, spec.phase
        if name not in self._found:
            self._found[name] = None, None
            for table in self.published:
                if (result := table.find(spec, self.plan)) is not None:
                    self._found[name] = table, result
                    self.declared |= table.record.metrics
                    break
        return self._found[name]

    @property
    def failures(self) -> dict[str, str]:
        """Reasons of failed runs by key; they hold for all rows."""
        return {key: end.reason for key, end in self.ends.items() if end.status == "failed"}

    @property
    def taken(self) -> dict[str, Published]:
        """The published table by key of each reused run."""
        needed = [spec for spec in self._needed() if spec.key not in self.ends]
        tables = {spec.key: self._find_published(spec)[0] for spec in reversed(needed)}
        return {key: table for key, table in tables.items() if table is not None}

    def _needed(self) -> list[RunSpec]:
        """Return the runs that cells have needed so far."""
        return [spec for cell, state in self.states() for spec in cell.all_runs(state)]

    @property
    def stored(self) -> dict[str, RunSpec]:
        """Finished runs of earlier invocations that are reused, by key."""
        stored = {key for key, end in self.ends.items() if end.is_stored}
        return {spec.key: spec for spec in self._needed() if spec.key in stored}

    def unmeasured_folders(self) -> list[Path]:
        """Return the folders of needed runs without a result that their row can use."""
        lacking = [key for (key, _), result in self._results.items() if isinstance(result, str)]
        keys = [key for key in [*self.runs, *lacking] if key not in self.failures]
        return [self.folder(key) for key in dict.fromkeys(keys)]

    @property
    def reasons(self) -> list[str]:
        """All distinct reasons of missing results."""
        lacking = [result for result in self._results.values() if isinstance(result, str)]
        return list(dict.fromkeys([*self.failures.values(), *lacking]))

    def status_of(self, key: str) -> Status:
        """Return the status of a run: pending if nothing is known of it."""
        if key in self.ends:
            return self.ends[key].status
        return self.runs[key].status if key in self.runs else "pending"

    def lookup(self, spec: RunSpec) -> RunEnd | None:
        """Return the end of a run, or None if the run has not ended."""
        result = self.outcome_of(spec)
        if isinstance(result, Measured):
            return RunEnd(result.score)
        return None if result is None else RunEnd(None, diverged=result.startswith(DIVERGED))

    # --- the next runs ----------------------------------------------------------------------------

    def states(self) -> list[tuple[Cell, CellState]]:
        """Return the progress of every cell; only those that an end concerns are computed anew."""
        for number, cell in enumerate(self.cells):
            if number not in self._states:
                self._states[number] = cell.state(partial(self._lookup_for, number))
        return [(cell, self._states[number]) for number, cell in enumerate(self.cells)]

    def _lookup_for(self, cell: int, spec: RunSpec) -> RunEnd | None:
        self._asking.setdefault(spec.key, set()).add(cell)
        return self.lookup(spec)

    def _changed(self, key: str) -> None:
        """Forget the states of the cells that have looked up a run."""
        for cell in self._asking.pop(key, ()):
            self._states.pop(cell, None)

    def look(self) -> Study:
        """Find the runs that cells need: in the store, or as runs to begin; return the study."""
        while new := [s for _, state in self.states() for s in state.pending if self._is_new(s)]:
            for spec in filter(self._is_new, new):  # two cells may need the same run
                folder = self.folder(spec.key)
                if RunFolder(folder).is_finished:
                    self.ends[spec.key] = End("finished", is_stored=True)
                    self._changed(spec.key)
                else:
                    self.runs[spec.key] = StudyRun(len(self.runs), spec, folder)
        return self

    def _is_new(self, spec: RunSpec) -> bool:
        return spec.key not in self.ends and spec.key not in self.runs

    def ask(self) -> StudyRun | None:
        """Return the run to begin now, or None; tuning before reports, longest first."""
        self.look()
        ready = [run for run in self.runs.values() if run.status == "pending"]
        if not ready and self._ask_tpe():
            return self.ask()
        return min(ready, key=_priority, default=None)

    def _ask_tpe(self) -> bool:
        """Add a configuration suggested by tpe; return False if the sweep needs no more."""
        tuning = self.plan.tuning
        if tuning.search != "tpe" or len(self.suggested) >= (tuning.configurations or 0):
            return False
        from fedray.studies.tpe import suggest

        objectives = {repr(result.config): result.objective for result in self.states()[0][1].tried}
        results = [(config, objectives.get(repr(config))) for config in self.suggested]
        finished = [repr(config) in objectives for config in self.suggested]
        self.suggested.append(suggest(self.plan, results, finished))
        self._states.clear()
        self.write()
        return True

    def tell(self, run: StudyRun, status: EndStatus, reason: str = "") -> None:
        """Record the end of a run, and find the runs that cells need next.

        Raises:
            ValueError: if the run has ended already.
        """
        key, row = run.spec.key, run.spec.place.row
        if key in self.ends:
            raise ValueError(f"{self.name_of(run.spec)} has ended already: {self.ends[key]}")
        self.seconds[key] = self.seconds.get(key, 0.0) + run.seconds
        self.ends[key] = End("failed" if reason else status, reason)
        self._changed(key)
        result = self._result(key, row)
        if isinstance(result, Measured):
            run.status, run.objective, run.round = status, result.choice, result.round
        else:
            run.status, run.reason = "failed", result
        self.look()

    @property
    def cells_over(self) -> int:
        """Number of finished cells."""
        return sum(state.phase in ("over", "failed") for _, state in self.states())

    @property
    def is_complete(self) -> bool:
        """True if every cell is finished."""
        return self.cells_over == len(self.cells)

    def has_result(self, cell: Cell) -> bool:
        """Return True if any run of a cell has a result."""
        state = next(cell_state for owner, cell_state in self.states() if owner is cell)
        return state.phase != "failed"

    @property
    def total(self) -> int:
        """Number of runs, as far as known."""
        return len(self.runs) + sum(cell.min_further_runs(state) for cell, state in self.states())

    @property
    def remaining_runs(self) -> int:
        """Number of runs that have not ended, as far as known."""
        return self.total - sum(run.is_over for run in self.runs.values())

    def name_of(self, run: RunSpec) -> str:
        """Return a short name of a run for messages."""
        config = f"{config_label(run.config)} " if run.config else ""
        if self.plan.is_sweep:
            return f"{config}seed={run.seed}"
        return f"{run.place}, {run.phase}: {config}seed={run.seed}"

    @property
    def repeatable(self) -> list[str]:
        """Keys of the runs that failed, but did not diverge, and may succeed when repeated."""
        return [key for key, why in self.failures.items() if not why.startswith(DIVERGED)]

    def forget_failures(self) -> None:
        """Forget failures other than divergence, whose causes may be gone, so that runs restart."""
        for key in self.repeatable:
            del self.ends[key]
        self._states.clear()

    # --- the file ---------------------------------------------------------------------------------

    def write(self) -> None:
        """Replace plan.json in one step."""
        begun = {key: run for key, run in self.runs.items() if run.status != "pending"}
        tree = {
            "format": FORMAT,
            "kind": self.plan.kind,
            "name": self.plan.name,
            "status": self.status,
            "began": self.began,
            "command": self.command,
            "asked": self.arguments,
            "store": str(self.store),
            "seconds": self.seconds,
            "failures": self.failures,
            "stopped": [key for key, end in self.ends.items() if end.status == "stopped"],
            "begun": {key: run.ray_id or "" for key, run in begun.items()},
            "asked_configurations": self.suggested,
            "from": [table.source for table in self.published],
            "plan": self.plan.model_dump(mode="json"),
        }
        self.home.mkdir(parents=True, exist_ok=True)
        for number, published in enumerate(self.published):
            if not (copy := self.home / published_copy(number)).exists():
                write_json(copy, sealed(published.record.tree()))
        parsed = json.loads(json.dumps(tree))  # as read from a file: all keys are strings
        write_json(self.home / FILE, sealed(parsed))

    @classmethod
    def read(cls, home: Path) -> Study:
        """Read an invocation's plan.json.

        Raises:
            UserError: if the file does not exist or cannot be read.
        """
        path = home / FILE
        if not os.path.lexists(path):
            raise UserError(f"{path} does not exist; name the folder of an invocation")
        try:
            tree = json.loads(read_regular(path))
            if CHECKSUM in tree:
                tree = unsealed(tree)
            if tree["format"] == FORMAT:
                return cls._of(home, tree)
        except UserError:
            raise
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {named(error)}; start anew") from None
        raise UserError(
            f"{path} has format {tree['format']}, this version reads {FORMAT}; start anew"
        )

    def reread(self) -> Study:
        """Return the study as its plan.json is now, with the results that have been read."""
        now = Study.read(self.home)
        results = self._results.items()
        now._results = {name: found for name, found in results if isinstance(found, Measured)}
        now.declared = self.declared
        return now.look()

    @classmethod
    def _of(cls, home: Path, tree: Tree) -> Study:
        return cls(
            home=home,
            plan=validate(StudyPlan, tree["plan"], str(home / FILE)),
            store=_store_of(home, Path(tree["store"])),
            command=tree["command"],
            arguments=tree.get("asked", {}),
            status=tree["status"],
            began=tree["began"],
            seconds=dict(tree["seconds"]),
            ends={
                **{key: End("failed", reason) for key, reason in tree["failures"].items()},
                **{key: End("stopped") for key in tree["stopped"]},
            },
            begun=dict(tree.get("begun", {})),
            suggested=list(tree.get("asked_configurations", ())),
            published=[
                Published(source, TableRecord.read(home / published_copy(number)))
                for number, source in enumerate(tree.get("from", ()))
            ],
        )


def _store_of(home: Path, recorded: Path) -> Path:
    """Return the folder of a study's runs: the recorded one, or that of moved results."""
    results = home.resolve().parent.parent
    moved = (results.parent if results.name == "tables" else results) / "store"
    return moved if moved.is_dir() and not recorded.is_dir() else recorded


def published_copy(number: int) -> str:
    """Return the file name of an invocation's copy of a published table."""
    return f"from-{number}.json"


def _priority(run: StudyRun) -> tuple[bool, int, int]:
    """Return a sort key: tuning runs first, because reports need them, then the longest."""
    return run.spec.phase == "report", -run.cost, run.number


def latest_unfinished(folder: Path, kind: str) -> Path:
    """Return the invocation in a study's folder to resume: the latest one that is unfinished.

    If all have ended, it is the latest one, provided that runs of it have failed.

    Raises:
        UserError: if every invocation is finished.
    """
    paths = sorted(folder.glob(f"*/{FILE}"), reverse=True)
    for path in paths:
        if _status(path) == "running":
            return path.parent
    if paths and _status(paths[0]) == "failed":
        return paths[0].parent
    raise UserError(f"--resume: no {kind} below {folder} is unfinished; start without --resume")


def _status(path: Path) -> Any:
    try:
        return json.loads(read_regular(path)).get("status")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
