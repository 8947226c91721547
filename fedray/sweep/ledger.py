"""sweep.json: the plan, every trial, and how it ended.

    <results>/<sweep>/<invocation>/sweep.json
                                   sweep.png, trials.csv      at the end
                                   trial_00003_lambda=7/seed_0/{result.json, ...}

The ledger and the trials' own folders are all that `--resume` needs: finished trials are read from
here, the others run again in their folder, each after its own checkpoint. Ray Tune's snapshot of an
experiment lags behind its trials and forgets schedulers, so it is not used for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from fedray.config import Experiment, Tree, validate
from fedray.errors import UserError, named
from fedray.files import write_json
from fedray.records import sealed, unsealed
from fedray.records.checked_json import CHECKSUM
from fedray.sweep.seeds import MergedRound, objective_of, read_merged, read_seeds
from fedray.sweep.spec import Config, SweepPlan, folder_name

FILE = "sweep.json"
FORMAT = 3
DIED = "it died"
"""How the reason begins of a trial that failed because its processes died."""
DIVERGED = "it diverged"
"""Likewise, because a number was not finite: that alone speaks against its configuration."""
T = TypeVar("T")
Status = Literal["pending", "running", "finished", "stopped", "failed"]


@dataclass
class Trial:
    """One configuration and what became of it.

    Attributes:
        number: from 0; Optuna's number too.
        config: the swept keys' values.
        status: pending: not begun, or interrupted; stopped: ended early by ASHA.
        objective: the number that chooses, mean over seeds; None until measured.
        std: the sample standard deviation over seeds.
        test: the metric on the test in the same rounds, mean over seeds; it chooses nothing, unless
            it is the objective.
        test_std: its sample standard deviation.
        best_rounds: for each seed, the round of its objective.
        last_round: the last finished round.
        final: the metric in the last evaluated round, mean over seeds.
        bytes: traffic up and down of one run, mean over seeds.
        reason: why it failed.
        startup_seconds: from the start of the trial's actor to its first round.
        seconds: from the start of the trial's actor to its end, over all attempts.
        ray_id: Ray Tune's name of the trial.
    """

    number: int
    config: Config
    status: Status = "pending"
    objective: float | None = None
    std: float = 0.0
    test: float | None = None
    test_std: float = 0.0
    best_rounds: list[int] = field(default_factory=list)
    last_round: int | None = None
    final: float | None = None
    bytes: float = 0.0
    reason: str | None = None
    startup_seconds: float | None = None
    seconds: float = 0.0
    ray_id: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def when(self) -> str:
        """The objective's round, or the seeds' first and last one: "9-10"."""
        ends = sorted({min(self.best_rounds), max(self.best_rounds)}) if self.best_rounds else []
        return "-".join(str(end) for end in ends)

    @property
    def name(self) -> str:
        """The trial's folder, below the invocation's."""
        return folder_name(self.number, self.config)

    def measure(self, rounds: Sequence[MergedRound], plan: SweepPlan) -> None:
        """Record these rounds' results."""
        if rounds:
            self.last_round = rounds[-1].round
            self.bytes = sum(r.mean.up.total_bytes + r.mean.down.total_bytes for r in rounds)
        found = objective_of(rounds, plan)
        if found is not None:
            self.objective, self.std, self.best_rounds = found.value, found.std, found.rounds
            self.test, self.test_std = found.test, found.test_std
            curve = [r.mean.metrics for r in rounds if plan.metric in r.mean.metrics]
            self.final = curve[-1][plan.metric] if curve else None


class TrialBook(Protocol):
    """The trials that the driver watches, of a sweep or of a table.

    Attributes:
        trials: by number.
    """

    trials: dict[int, Trial]

    @property
    def ordered(self) -> list[Trial]:
        """All trials by number."""
        ...

    @property
    def open(self) -> list[Trial]:
        """The trials that are still to be run, or run on."""
        ...

    @property
    def total(self) -> int:
        """How many trials there will be, as far as is known."""
        ...

    @property
    def leading(self) -> Trial | None:
        """The best trial so far; None where that says nothing."""
        ...

    @property
    def seeds_of_a_trial(self) -> int:
        """How many runs a trial is."""
        ...

    @property
    def stops_early(self) -> bool:
        """Whether trials may be ended before their last round."""
        ...

    @property
    def usual_rounds(self) -> int:
        """Rounds of a trial whose configuration is not known yet."""
        ...

    @property
    def how(self) -> str:
        """What marks a trial's number: "best on validation"."""
        ...

    def experiment_of(self, trial: Trial) -> Experiment:
        """A trial's experiment, with its first seed."""
        ...

    def rounds_of(self, trial: Trial) -> list[MergedRound]:
        """The rounds that a trial has finished, from its files."""
        ...

    def is_whole(self, trial: Trial) -> bool:
        """Whether no round of a trial is left to do."""
        ...

    def measure(self, trial: Trial, rounds: Sequence[MergedRound]) -> None:
        """Record what these rounds came to."""
        ...

    def write(self) -> None:
        """Keep on disk what is needed to go on."""
        ...


@dataclass
class Ledger:
    """The state of one invocation of a sweep.

    Attributes:
        home: the invocation's folder.
        plan: what is swept, and how.
        trials: by number.
        status: running until every trial is over.
        began: when the invocation began, local time.
    """

    home: Path
    plan: SweepPlan
    trials: dict[int, Trial] = field(default_factory=dict)
    status: Literal["running", "finished"] = "running"
    began: str = field(default_factory=lambda: datetime.now().isoformat(timespec="seconds"))

    def add(self, number: int, config: Config) -> Trial:
        """Enter a trial; one that is already there stays as it is."""
        return self.trials.setdefault(number, Trial(number, config))

    @property
    def ordered(self) -> list[Trial]:
        """All trials by number."""
        return [self.trials[number] for number in sorted(self.trials)]

    @property
    def open(self) -> list[Trial]:
        """The trials that are still to be run, or run on."""
        return [trial for trial in self.ordered if not trial.is_over]

    @property
    def total(self) -> int:
        """How many trials there will be."""
        plan = self.plan
        return len(self.trials) if plan.search == "grid" else plan.num_samples or 0

    @property
    def left(self) -> int:
        """How many trials are still to be run, those included that have no configuration yet."""
        return self.total - sum(trial.is_over for trial in self.ordered)

    @property
    def best(self) -> Trial | None:
        """The best trial that is over; the first of equals. Stopped ones count too.

        None where nothing is chosen, or where not trials but means over them are compared
        (`means.best_row`).
        """
        return self._first(trial for trial in self.ordered if trial.is_over)

    @property
    def through(self) -> list[Trial]:
        """The trials that have a result."""
        return [t for t in self.ordered if t.status != "failed" and t.objective is not None]

    @property
    def leading(self) -> Trial | None:
        """The best trial so far, over or not."""
        return self._first(self.ordered)

    def _first(self, trials: Iterable[Trial]) -> Trial | None:
        sign = 1 if self.plan.mode == "max" else -1
        if self.plan.select == "nothing" or self.plan.mean_over is not None:
            return None
        worth = [t for t in trials if t.status != "failed" and t.objective is not None]
        return max(worth, key=lambda t: sign * (t.objective or 0.0), default=None)

    @property
    def seeds_of_a_trial(self) -> int:
        """How many runs a trial is."""
        return len(self.plan.seeds)

    @property
    def stops_early(self) -> bool:
        """Whether trials may be ended before their last round."""
        return self.plan.asha is not None

    @property
    def usual_rounds(self) -> int:
        """Rounds of a trial whose configuration is not known yet."""
        return self.plan.some_experiment().rounds

    @property
    def how(self) -> str:
        """What marks a trial's number: "best on validation"."""
        return self.plan.how

    def experiment_of(self, trial: Trial) -> Experiment:
        """A trial's experiment, with its first seed."""
        return self.plan.experiment_of(trial.config, self.plan.seeds[0])

    def rounds_of(self, trial: Trial) -> list[MergedRound]:
        """The rounds that all seeds of a trial have finished, from their files."""
        return read_merged(self.home / trial.name, self.plan)

    def is_whole(self, trial: Trial) -> bool:
        """Whether no round of a trial is left to do, of any seed."""
        runs = read_seeds(self.home / trial.name, self.plan)
        return bool(runs) and all(run.is_finished for run in runs)

    def measure(self, trial: Trial, rounds: Sequence[MergedRound]) -> None:
        """Record what these rounds came to."""
        trial.measure(rounds, self.plan)

    def write(self) -> None:
        """Replace sweep.json in one step."""
        best = self.best
        write_state(
            self.home / FILE,
            {
                "format": FORMAT,
                "sweep": self.plan.sweep,
                "scale": self.plan.scale,
                "status": self.status,
                "began": self.began,
                "best": None if best is None else best.number,
                "trials": [{"folder": trial.name, **asdict(trial)} for trial in self.ordered],
                "plan": self.plan.model_dump(mode="json"),
            },
        )

    @classmethod
    def read(cls, home: Path) -> Ledger:
        """Read what `write` wrote; what was running counts as pending.

        Raises:
            UserError: when it cannot be read.
        """
        return read_state(home / FILE, FORMAT, lambda tree: cls._of(home, tree))

    @classmethod
    def _of(cls, home: Path, tree: Tree) -> Ledger:
        ledger = cls(
            home=home,
            plan=validate(SweepPlan, tree["plan"], str(home / FILE)),
            status=tree["status"],
            began=tree["began"],
        )
        for entry in tree["trials"]:
            del entry["folder"]
            trial = Trial(**entry)
            if not trial.is_over:
                trial.status = "pending"
            ledger.trials[trial.number] = trial
        return ledger


def write_state(path: Path, tree: Tree) -> None:
    """Replace what an invocation, of a sweep or of a table, wrote of itself, with a checksum.

    Args:
        path: the file.
        tree: its content; `format` is what `read_state` asks for.
    """
    whole = json.loads(json.dumps(tree))  # as a reader finds it: with texts for all keys
    write_json(path, sealed(whole))


def read_state(path: Path, version: int, make: Callable[[Tree], T]) -> T:
    """Read what an invocation, of a sweep or of a table, wrote of itself.

    What an earlier version wrote has no checksum.

    Args:
        path: the file.
        version: the format that `make` reads.
        make: of the file's tree.

    Raises:
        UserError: when it cannot be read.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if CHECKSUM in tree:
            tree = unsealed(tree)
        found = tree["format"]
        if found == version:
            return make(tree)
    except UserError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {named(error)}; start anew") from None
    raise UserError(f"{path} has format {found}, this version reads {version}; start anew")


def unfinished(folder: Path, file: str = FILE, what: str = "sweep") -> Path:
    """The latest invocation below a sweep's or a table's folder that is not finished.

    Args:
        folder: of all invocations.
        file: what an invocation wrote of itself.
        what: an invocation's kind, for the error.

    Raises:
        UserError: when there is none.
    """
    for path in sorted(folder.glob(f"*/{file}"), reverse=True):
        if _status(path) == "running":
            return path.parent
    raise UserError(f"--resume: no {what} below {folder} is unfinished; start without --resume")


def _status(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("status")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
