"""Sweeps and tables from Python; each runs as its command does, and says as much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.api.experiment import plain
from fedray.api.result import Result, frame
from fedray.command import INTERRUPTED, RUN_ERROR
from fedray.config import Tree, dump_yaml
from fedray.errors import RunFailed, UserError
from fedray.files import check_name, discard_if_empty, reserve, stamp, write_atomic
from fedray.studies.file import Kind
from fedray.studies.flow import Request, carry_out, home_of
from fedray.studies.store import DATA, check_table
from fedray.studies.study import Study
from fedray.studies.trials import SweepOutcome, Trial, sweep_outcome

if TYPE_CHECKING:
    import pandas

Paths = str | Path | Sequence[str | Path]


def _paths(given: Paths) -> list[str]:
    return [str(each) for each in ([given] if isinstance(given, str | Path) else given)]


class _Study:
    """A sweep or a table: a file or a mapping, and what is asked of it."""

    def __init__(
        self,
        kind: Kind,
        given: str | Path | Mapping[str, Any],
        pairs: Mapping[str, Any],
        scale: str | None,
        plugins: Paths,
        samples: int | None = None,
        published: Paths = (),
    ) -> None:
        self._tree: Tree | None = None
        if isinstance(given, Mapping):
            self._tree = plain(given)
            given = check_name(str(self._tree.pop("name", kind)))
        self.name = str(given)
        self._request = Request(
            kind=kind,
            name=self.name,
            pairs=[(key, plain(value)) for key, value in pairs.items()],
            scale=scale,
            samples=samples,
            plugins=_paths(plugins),
            published=[Path(each) for each in _paths(published)],
        )

    def _carry_out(self, out: str | Path | None, track: bool, resume: bool) -> tuple[Path, bool]:
        """Run it; return the folder of the invocation, and whether anything came through.

        Raises:
            UserError: if something is missing or wrong.
            KeyboardInterrupt: after Ctrl-C, which Ray Tune answers by ending what runs.
        """
        request = self._request
        home = _home(home_of(request.kind, Path(self.name).stem), out, resume)
        name, pairs = self.name, request.pairs
        with discard_if_empty(home if out is None else None):
            if self._tree is not None:
                name = str(home / f"{self.name}.yaml")
                home.mkdir(parents=True, exist_ok=True)
                write_atomic(Path(name), dump_yaml(self._tree))
            if resume:
                pairs = ()
            asked = {"name": name, "pairs": pairs, "out": home, "resume": resume, "track": track}
            _, code = carry_out(Request(**{**vars(request), **asked}))
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return home, code != RUN_ERROR


class Sweep(_Study):
    """One experiment in many configurations, tuned by Ray Tune.

    Args:
        sweep: a sweep in tune/, a YAML file, or a mapping of what such a file holds, which may say
            with `name` what it is called.
        settings: keys of every run's experiment, dotted.
        scale: None: the first that the file has.
        num_samples: number of configurations; of a grid, this number of evenly spread ones.
        plugins: files, folders or modules of your own.
        **keys: further keys without a dot, `rounds=5`.
    """

    def __init__(
        self,
        sweep: str | Path | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        scale: str | None = None,
        num_samples: int | None = None,
        plugins: Paths = (),
        **keys: Any,
    ) -> None:
        pairs = {**(settings or {}), **keys}
        super().__init__("sweep", sweep, pairs, scale, plugins, num_samples)

    def run(
        self, out: str | Path | None = None, *, track: bool = False, resume: bool = False
    ) -> SweepResult:
        """Run it; progress and the table are printed.

        Args:
            out: the folder of its results; None: new, below $FEDRAY_RESULTS or ~/fedray_results.
            track: whether it is logged to MLflow.
            resume: go on with the sweep in `out`.

        Raises:
            UserError: if something is missing or wrong.
            RunFailed: if no configuration came through.
        """
        home, came_through = self._carry_out(out, track, resume)
        if not came_through:
            raise RunFailed(f"no trial of {self.name} came through; {home}/trials.csv says why")
        return SweepResult(home)


class SweepResult:
    """Results of a sweep.

    Args:
        folder: its results.

    Attributes:
        folder: its results.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def _outcome(self) -> SweepOutcome:
        return sweep_outcome(Study.read(self.folder))

    @property
    def trials(self) -> Sequence[Trial]:
        """Return every configuration with its outcome."""
        return self._outcome.trials

    @property
    def best(self) -> Trial | None:
        """The best configuration; None if nothing chooses."""
        return self._outcome.best

    def runs(self, trial: Trial) -> list[Result]:
        """Return the runs of a configuration, one per seed."""
        return [Result(folder) for folder in trial.runs]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per configuration: the swept keys and the results."""
        metrics = self._outcome.plan.metrics
        rows = [
            {
                "trial": trial.number,
                **trial.config,
                "status": trial.status,
                "objective": trial.objective,
                "std": trial.std,
                **{metric: trial.mean(metric) for metric in metrics},
                "seconds": trial.seconds,
            }
            for trial in self.trials
        ]
        return frame(rows, index=["trial"])


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
        plugins: Paths = (),
        published: Paths = (),
        **keys: Any,
    ) -> None:
        pairs = {**(settings or {}), **keys}
        super().__init__("table", table, pairs, scale, plugins, published=published)

    def run(
        self, out: str | Path | None = None, *, track: bool = False, resume: bool = False
    ) -> TableResult:
        """Run it; arguments and errors as of `Sweep.run`."""
        home, came_through = self._carry_out(out, track, resume)
        if not came_through:
            raise RunFailed(f"no cell of {self.name} came through; {home / 'table.md'} says why")
        return TableResult(home)


class TableResult:
    """Results of a table.

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
            UserError: if table.json is missing, damaged or edited.
        """
        return check_table(self.folder / DATA)

    @property
    def markdown(self) -> str:
        """The page."""
        return (self.folder / "table.md").read_text(encoding="utf-8")

    @property
    def latex(self) -> str:
        """The table for a paper."""
        return (self.folder / "table.tex").read_text(encoding="utf-8")

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per cell, metric and seed, with its value in the unit that is shown."""
        rows = [
            {"row": c["row"], "column": c["column"], "metric": name, "seed": int(seed), "value": v}
            for c in self.data["cells"]
            for name, found in c["metrics"].items()
            for seed, v in found["by_seed"].items()
        ]
        return frame(rows, index=["row", "column", "metric", "seed"])


def _home(below: Path, out: str | Path | None, resume: bool) -> Path:
    """Return the folder of an invocation; make a new one.

    Raises:
        UserError: if it is to be resumed and not named, or cannot be made.
    """
    if out is not None:
        return Path(out).expanduser().resolve()
    if resume:
        raise UserError("resume=True goes on with what is in `out`; name its folder")
    return reserve(below / stamp())
