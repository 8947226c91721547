"""An experiment from Python: set up from a name, a file or a mapping, and trained."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from fedray.api.result import Result
from fedray.api.training import Callback, ExecutorName, begin, follow, new_folder
from fedray.config import (
    Tree,
    merge,
    parents_first,
    read_experiment,
    with_read_plugins,
)
from fedray.errors import UserError
from fedray.files import discard_if_empty
from fedray.records import Round, RunFolder, prove_writable
from fedray.remote_results import check_owner, fetch_missing
from fedray.runtime.resolve import from_tree
from fedray.tracking import run_tracker

log = logging.getLogger(__name__)


class Experiment:
    """One federated experiment, complete and checked; it does not change.

    Args:
        base: a shipped name (`fedray ls experiments`), a YAML file, or a mapping of keys, which may
            name with `extends` what it changes.
        settings: further keys, dotted, `{"data.partition.alpha": 0.1}`.
        plugins: files, folders or modules of your own (docs/plugins.md).
        **keys: further keys without a dot, `lr=0.1`; sections as mappings, `data={"clients": 5}`.

    Raises:
        UserError: with one sentence about the first thing that is wrong.

    Example:
        >>> experiment = Experiment("fedavg_digits", {"data.clients": 5}, rounds=3)
        >>> result = experiment.train(executor="serial")  # doctest: +SKIP
    """

    def __init__(
        self,
        base: str | Path | Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        plugins: str | Path | Sequence[str | Path] = (),
        **keys: Any,
    ) -> None:
        pairs = [(key, plain(value)) for key, value in {**(settings or {}), **keys}.items()]
        pairs = parents_first(pairs)
        given = [plugins] if isinstance(plugins, str | Path) else plugins
        tree = with_read_plugins(_tree(base), pairs, [str(each) for each in given])
        self._resolved = from_tree(tree, [pair for pair in pairs if pair[0] != "plugins"])

    @property
    def name(self) -> str:
        """Return the name of the experiment in results and in the tracker."""
        return self._resolved.name

    @property
    def config(self) -> Tree:
        """Return every key with its value, as plain data: the content of a run's `config.yaml`."""
        return self._resolved.tree()

    @property
    def identity(self) -> str:
        """A hash of all that determines the numbers but the images."""
        return self._resolved.identity()

    def __repr__(self) -> str:
        e = self._resolved
        return (
            f"<Experiment {e.name}: {e.algorithm.name} on {e.data.source.name}, {e.data.clients} "
            f"clients, {e.rounds} rounds, seed {e.seed}>"
        )

    def but(self, settings: Mapping[str, Any] | None = None, **keys: Any) -> Experiment:
        """This experiment with other keys; arguments and errors as of the class."""
        return Experiment(self.config, settings, **keys)

    def train(
        self,
        out: str | Path | None = None,
        *,
        executor: ExecutorName = "ray",
        callbacks: Iterable[Callback] = (),
        track: bool = False,
        resume: bool = False,
    ) -> Result:
        """Run it to its end.

        Args:
            out: a new folder for the results; None: one below $FEDRAY_RESULTS or ~/fedray_results.
            executor: "ray": workers of a Ray cluster, which is started here when there is none;
                "serial": this process. The numbers are the same.
            callbacks: each is called after every round with a copy of its record.
            track: whether it is logged to MLflow, as the command line does.
            resume: go on with the run in `out` after its last checkpoint.

        Raises:
            UserError: when something is missing, or the folder is taken.
            RunFailed: when a callback raises an error, or the cluster does not go on.
            CodeError: when the method's or the model's code raises an error.
        """
        folder = self._folder(out, resume)
        rounds = self._rounds(folder, executor, list(callbacks), track)
        with discard_if_empty(folder if out is None else None), closing(rounds):
            for _ in rounds:
                pass
        return Result(folder)

    def rounds(
        self, out: str | Path, *, executor: ExecutorName = "ray", track: bool = False
    ) -> Generator[Round, None, None]:
        """Run it, and yield the record of every round as it comes; arguments as of `train`.

        Closing the iterator early closes the run; `train(out, resume=True)` continues it.
        """
        yield from self._rounds(self._folder(out, False), executor, [], track)

    def _folder(self, out: str | Path | None, resume: bool) -> Path:
        """Return the run's folder: a new one, or the one to go on with.

        Raises:
            UserError: when it is taken, or holds nothing to go on with.
        """
        place = None if out is None else Path(out).expanduser()
        if not resume:
            return new_folder(self.name, place, "resume=True")
        if place is None:
            raise UserError("resume=True goes on with the run in `out`; name its folder")
        place = place.resolve()
        fetch_missing(place)
        folder = RunFolder(place)
        if not folder.config.is_file():
            raise UserError(f"{place} has no config.yaml, so no run to go on with")
        check_owner(place)
        folder.check_plugins(self._resolved.plugins)
        return place

    def _rounds(
        self, out: Path, executor: ExecutorName, callbacks: Sequence[Callback], track: bool
    ) -> Generator[Round, None, None]:
        if executor not in ("ray", "serial"):
            raise UserError(f"executor={executor!r} is neither 'ray' nor 'serial'")
        began = time.time()
        prove_writable(RunFolder(out))
        tracker = run_tracker(self._resolved, out) if track else None
        rounds = begin(self._resolved, out, executor, began, log.info)
        yield from follow(out, rounds, tracker, callbacks=callbacks)


def _tree(base: str | Path | Mapping[str, Any]) -> Tree:
    """Return the plain data of an experiment with what it extends."""
    if not isinstance(base, Mapping):
        return read_experiment(str(base))
    tree = plain(base)
    extends = tree.pop("extends", None)
    return tree if extends is None else merge(read_experiment(str(extends)), tree)


def plain(value: Any) -> Any:
    """Return a value as YAML would give it: paths as texts, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
