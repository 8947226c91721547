"""Sweeps and tables from Python; each runs as its command does, and says as much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import yaml

from fedray.api.experiment import plain
from fedray.api.result import Result, frame
from fedray.command import INTERRUPTED, RUN_ERROR
from fedray.config import Tree, dump_yaml
from fedray.errors import RunFailed, UserError
from fedray.files import (
    check_name,
    reserve,
    results_home,
    stamp,
    tables_home,
    unused_removed,
    write_atomic,
)
from fedray.sweep import command as sweeping
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.seeds import seed_folders
from fedray.tables import command as comparing
from fedray.tables.published import DATA, check_table

if TYPE_CHECKING:
    import pandas


class _Study:
    """A sweep or a table: a file or a mapping, and the words of its command line."""

    def __init__(
        self,
        given: str | Path | Mapping[str, Any],
        kind: Literal["sweep", "table"],
        pairs: Mapping[str, Any],
        plugins: str | Path | Sequence[str | Path],
        flags: Sequence[str],
    ) -> None:
        self._tree: Tree | None = None
        if isinstance(given, Mapping):
            self._tree = plain(given)
            given = check_name(str(self._tree.pop("name", kind)))
        self.name = str(given)
        self._words = [f"{key}={_flow(plain(value))}" for key, value in pairs.items()]
        self._words += flags
        for plugin in [plugins] if isinstance(plugins, str | Path) else plugins:
            self._words += ["--plugin", str(plugin)]

    def _carry_out(
        self,
        command: ModuleType,
        below: Path,
        out: str | Path | None,
        track: bool,
        resume: bool,
    ) -> tuple[Path, bool]:
        """Run the command; returns the folder of the invocation, and whether anything came through.

        Raises:
            UserError: when something is missing or wrong.
            KeyboardInterrupt: after Ctrl-C, which Ray Tune answers by ending what runs.
        """
        home = _home(below / Path(self.name).stem, out, resume)
        with unused_removed(home if out is None else None):
            code = self._code(command, home, track, resume)
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            return home, code != RUN_ERROR

    def _code(self, command: ModuleType, home: Path, track: bool, resume: bool) -> int:
        """The command's exit code."""
        name = self.name
        if self._tree is not None:
            name = str(home / f"{self.name}.yaml")
            home.mkdir(parents=True, exist_ok=True)
            write_atomic(Path(name), dump_yaml(self._tree))
        words = [name, *([] if resume else self._words), *_flags(home, track, resume)]
        code: int = command.carry_out(command.parser().parse_intermixed_args(words))
        return code


class Sweep(_Study):
    """One experiment in many configurations, tuned by Ray Tune.

    Args:
        sweep: a sweep in tune/, a YAML file, or a mapping of what such a file holds, which may say
            with `name` what it is called.
        settings: keys of every trial's experiment, dotted.
        scale: laptop or paper.
        num_samples: so many configurations; of a grid, so many evenly spread ones.
        plugins: files, folders or modules of your own.
        **keys: further keys without a dot, `rounds=5`.
    """

    def __init__(
        self,
        sweep: str | Path | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        scale: str = "laptop",
        num_samples: int | None = None,
        plugins: str | Path | Sequence[str | Path] = (),
        **keys: Any,
    ) -> None:
        flags = ["--scale", scale]
        flags += [] if num_samples is None else ["--num-samples", str(num_samples)]
        super().__init__(sweep, "sweep", {**(settings or {}), **keys}, plugins, flags)

    def run(
        self, out: str | Path | None = None, *, track: bool = False, resume: bool = False
    ) -> SweepResult:
        """Run it; progress and the table are printed.

        Args:
            out: the folder of its results; None: new, below $FEDRAY_RESULTS or ~/fedray_results.
            track: whether it is logged to MLflow.
            resume: go on with the sweep in `out`.

        Raises:
            UserError: when something is missing or wrong.
            RunFailed: when no trial came through.
        """
        home, came_through = self._carry_out(sweeping, results_home(), out, track, resume)
        if not came_through:
            raise RunFailed(f"no trial of {self.name} came through; {home}/trials.csv says why")
        return SweepResult(home)


class SweepResult:
    """What a sweep came to.

    Args:
        folder: its results.

    Attributes:
        folder: its results.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger.read(self.folder)

    @property
    def trials(self) -> Sequence[Trial]:
        """Every configuration and what became of it."""
        return self._ledger.ordered

    @property
    def best(self) -> Trial | None:
        """The best configuration; None where nothing chooses."""
        return sweeping.best_trial(self._ledger)

    def runs(self, trial: Trial) -> list[Result]:
        """The runs of a trial, one per seed."""
        seeds = seed_folders(self.folder / trial.name, self._ledger.plan.seeds)
        return [Result(each.path) for each in seeds]

    def to_pandas(self) -> pandas.DataFrame:
        """A row per trial: what was swept, and what it came to.

        Raises:
            UserError: when pandas is not installed.
        """
        rows = [
            {"trial": t.number, **t.config, **{name: getattr(t, name) for name in _SHOWN}}
            for t in self.trials
        ]
        return frame(rows, index=["trial"])


_SHOWN = ("status", "objective", "std", "test", "test_std", "final", "last_round", "seconds")


class Table(_Study):
    """Methods by settings: each tuned with the same effort, several seeds, verdicts.

    Args:
        table: a table in tune/tables/, a YAML file, or a mapping of what such a file holds, which
            may say with `name` what it is called.
        settings: keys of every cell's experiment, or of the table (`report.seeds`), dotted.
        scale: None: the first that the file has.
        plugins: files, folders or modules of your own.
        published: folders of tables that were run; what they have run is not run again.
        **keys: further keys without a dot, `rounds=5`.
    """

    def __init__(
        self,
        table: str | Path | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        scale: str | None = None,
        plugins: str | Path | Sequence[str | Path] = (),
        published: str | Path | Sequence[str | Path] = (),
        **keys: Any,
    ) -> None:
        flags = [] if scale is None else ["--scale", scale]
        for folder in [published] if isinstance(published, str | Path) else published:
            flags += ["--from", str(folder)]
        super().__init__(table, "table", {**(settings or {}), **keys}, plugins, flags)

    def run(
        self, out: str | Path | None = None, *, track: bool = False, resume: bool = False
    ) -> TableResult:
        """Run it; arguments and errors as of `Sweep.run`."""
        home, came_through = self._carry_out(comparing, tables_home(), out, track, resume)
        if not came_through:
            raise RunFailed(
                f"no cell of {self.name} came through; {home / comparing.PAGE} says why"
            )
        return TableResult(home)


class TableResult:
    """What a table came to.

    Args:
        folder: its pages.

    Attributes:
        folder: its pages.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def data(self) -> Tree:
        """Everything: numbers by seed, what was tried and chosen, verdicts, cost.

        Raises:
            UserError: when table.json is missing, damaged or edited.
        """
        return check_table(self.folder / DATA)

    @property
    def markdown(self) -> str:
        """The page."""
        return (self.folder / comparing.PAGE).read_text(encoding="utf-8")

    @property
    def latex(self) -> str:
        """The table for a paper."""
        return (self.folder / "table.tex").read_text(encoding="utf-8")

    def to_pandas(self) -> pandas.DataFrame:
        """A row per cell, metric and seed, with its value in the unit that is shown.

        Raises:
            UserError: when pandas is not installed.
        """
        rows = [
            {"row": c["row"], "column": c["column"], "metric": name, "seed": int(seed), "value": v}
            for c in self.data["cells"]
            for name, found in c["metrics"].items()
            for seed, v in found["by_seed"].items()
        ]
        return frame(rows, index=["row", "column", "metric", "seed"])


def _home(below: Path, out: str | Path | None, resume: bool) -> Path:
    """The folder of an invocation; a new one is made.

    Raises:
        UserError: when it is to be resumed, and not named, or cannot be made.
    """
    if out is not None:
        return Path(out).expanduser().resolve()
    if resume:
        raise UserError("resume=True goes on with what is in `out`; name its folder")
    return reserve(below / stamp())


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _flags(home: Path, track: bool, resume: bool) -> list[str]:
    flags = ["--out", str(home)]
    return flags + ([] if track else ["--no-track"]) + (["--resume"] if resume else [])
