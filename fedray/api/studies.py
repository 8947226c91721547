"""`Sweep` and `Table`, which run as their commands do and print the same output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedray.api.experiment import plain
from fedray.base.errors import RunFailed
from fedray.command import INTERRUPTED, RUN_ERROR
from fedray.results.record import DATA, TableRecord
from fedray.studies.file import Kind
from fedray.studies.flow import Outcome, Request, carry_out
from fedray.studies.study import Study
from fedray.studies.trials import SweepOutcome

if TYPE_CHECKING:
    import pandas
    from ray.tune import ResultGrid

Paths = str | Path | Sequence[str | Path]


def _paths(paths: Paths) -> list[str]:
    return [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


class _Study:
    """A sweep or table, given by a name, file or mapping, with the options of its run."""

    kind: ClassVar[Kind]

    def __init__(
        self,
        study: str | Path | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        scale: str | None = None,
        plugins: Paths = (),
        **keys: Any,
    ) -> None:
        tree = plain(study) if isinstance(study, Mapping) else None
        self.name = str(study) if tree is None else str(tree.pop("name", self.kind))
        self._request = Request(
            kind=self.kind,
            name=self.name,
            pairs=[(key, plain(value)) for key, value in {**(settings or {}), **keys}.items()],
            scale=scale,
            plugins=_paths(plugins),
            tree=tree,
        )

    def _carry_out(self, out: str | Path | None, track: bool) -> Outcome:
        """Run the study, or go on with it; return what it came to.

        Raises:
            UserError: if something is missing or wrong.
            RunFailed: if nothing succeeded.
            KeyboardInterrupt: after Ctrl-C, once Ray Tune has stopped all trials.
        """
        place = None if out is None else Path(out).expanduser().resolve()
        outcome = carry_out(replace(self._request, out=place, track=track))
        if outcome.code == INTERRUPTED:
            raise KeyboardInterrupt
        if outcome.code == RUN_ERROR:
            raise RunFailed(f"no run of {self.name} succeeded; see {outcome.study.home}")
        return outcome


class Sweep(_Study):
    """One experiment in many configurations, tuned by Ray Tune.

    Args:
        study: a sweep in tune/, a YAML file, or a mapping with the content of such a file and
            optionally a `name`.
        settings: overrides by dotted key, for the experiments of all runs.
        scale: the size of the study; None: the first in its file.
        plugins: your files, folders or modules.
        **keys: further overrides with keys without a dot, `rounds=5`.
    """

    kind = "sweep"

    def run(self, out: str | Path | None = None, *, track: bool = True) -> SweepResult:
        """Run the sweep, or go on with it; print its progress and the table of trials.

        Args:
            out: folder for the results; None: NAME/SCALE below $FEDRAY_RESULTS or ~/fedray_results.
            track: whether to log to MLflow, as the command does.

        Raises:
            UserError: if something is missing or wrong.
            RunFailed: if no run succeeded.
        """
        outcome = self._carry_out(out, track)
        return SweepResult(outcome.study.home, outcome.grid)


class SweepResult:
    """The results of a sweep.

    Args:
        folder: the folder of the results.
        grid: Ray Tune's `ResultGrid`; None if every run had finished before.
    """

    def __init__(self, folder: str | Path, grid: ResultGrid | None = None) -> None:
        self.folder = Path(folder)
        self.grid = grid

    @cached_property
    def _outcome(self) -> SweepOutcome:
        return SweepOutcome(Study.read(self.folder))

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Return the best configuration: the values of the swept keys; None without a result."""
        best = self._outcome.best
        return None if best is None else self._outcome.configs[best]

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per configuration, seed and metric; shares are in percent.

        The columns are those of a table, with the number of the configuration as `row`, followed by
        the swept keys.
        """
        return self._outcome.numbers.frame


class Table(_Study):
    """A comparison of methods, each tuned with the same effort, with tests of claims over seeds.

    Args:
        study: a table in tune/tables/, a YAML file, or a mapping with the content of such a file
            and optionally a `name`.
        settings: overrides by dotted key, for the experiments of all cells or for the table
            (`report.seeds`).
        scale: the size of the study; None: the first in its file.
        plugins: your files, folders or modules.
        published: folders of finished tables whose runs are reused.
        **keys: further overrides with keys without a dot, `rounds=5`.
    """

    kind = "table"

    def __init__(
        self,
        study: str | Path | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        published: Paths = (),
        **options: Any,
    ) -> None:
        super().__init__(study, settings, **options)
        tables = [Path(path) for path in _paths(published)]
        self._request = replace(self._request, published=tables)

    def run(self, out: str | Path | None = None, *, track: bool = True) -> TableResult:
        """Run the table, or go on with it; arguments and errors as for `Sweep.run`."""
        return TableResult(self._carry_out(out, track).study.home)


class TableResult:
    """The results of a table.

    Args:
        folder: the folder of the results.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def record(self) -> TableRecord:
        """Return the content of table.json: runs, tuning and verdicts.

        Raises:
            UserError: if table.json is missing, damaged or edited.
        """
        return TableRecord.read(self.folder / DATA)

    @property
    def markdown(self) -> str:
        """Return the page as Markdown."""
        return (self.folder / "table.md").read_text(encoding="utf-8")

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per cell, metric and seed; shares are in percent."""
        frame = self.record.numbers.frame
        finished = frame[frame["status"] == "finished"]
        return finished.set_index(["row", "column", "metric", "seed"])
