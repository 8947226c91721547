"""`Experiment`: an experiment that is set up from a name, file or mapping, and trained."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedray.api.result import Result
from fedray.api.training import Callback, ExecutorName, executor_for, run_to_end, started
from fedray.config import (
    Tree,
    is_record,
    merge,
    parents_first,
    read_experiment,
    with_read_plugins,
)
from fedray.runtime.resolve import from_tree, given_keys, keys_of_user, name_without_effect
from fedray.storage.files import new_place, results_home
from fedray.storage.run import Round


class Experiment:
    """A complete and validated federated experiment; immutable.

    Args:
        base: a shipped name (`fedray ls experiments`), a YAML file, or a mapping of keys, whose key
            `extends` can name an experiment to inherit from.
        settings: overrides by dotted key, for example `{"data.partition.alpha": 0.1}`.
        plugins: your files, folders or modules (docs/write-a-method.md).
        **keys: further overrides: keys without a dot, `lr=0.1`, or sections as mappings,
            `data={"clients": 5}`.

    Raises:
        UserError: if a key or value is invalid; the message describes the first mistake.

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
        pairs = _pairs(settings, keys)
        places = [plugins] if isinstance(plugins, str | Path) else plugins
        tree = with_read_plugins(
            _tree(base), pairs, [str(place) for place in places], named=not is_record(base)
        )
        self._resolve(tree, [pair for pair in pairs if pair[0] != "plugins"])
        name_without_effect(self._resolved, keys_of_user(base))

    def _resolve(self, tree: Tree, pairs: list[tuple[str, Any]]) -> None:
        """Resolve a tree with its plug-ins; keep both, so that `but` can add overrides."""
        self._tree, self._overrides = tree, pairs
        pairs = parents_first(pairs)
        self._resolved = from_tree(tree, pairs, given=given_keys(pairs))

    @property
    def name(self) -> str:
        """Return the name of the experiment in results and in MLflow."""
        return self._resolved.name

    @property
    def config(self) -> Tree:
        """Return every key with its value, as plain data: as a run records them."""
        return self._resolved.tree()

    @property
    def identity(self) -> str:
        """Return a hash of all settings that determine the results; images are not included."""
        return self._resolved.identity()

    def __repr__(self) -> str:
        e = self._resolved
        return (
            f"<Experiment {e.name}: {e.algorithm.name} on {e.data.source.name}, {e.data.clients} "
            f"clients, {e.rounds} rounds, seed {e.seed}>"
        )

    def but(self, settings: Mapping[str, Any] | None = None, **keys: Any) -> Experiment:
        """Return a copy of this experiment with further overrides, given as for the class.

        The earlier ones stay: `Experiment(base, a).but(b)` is `Experiment(base, {**a, **b})`. So a
        key of the method stays with another method, which must know it.
        """
        pairs = _pairs(settings, keys)
        copy = object.__new__(Experiment)
        tree = with_read_plugins(self._tree, pairs)
        copy._resolve(tree, self._overrides + [pair for pair in pairs if pair[0] != "plugins"])
        return copy

    def train(
        self,
        out: str | Path | None = None,
        *,
        executor: ExecutorName | None = None,
        callbacks: Iterable[Callback] = (),
        track: bool = True,
    ) -> Result:
        """Run the experiment to its end; print what the command prints.

        Args:
            out: folder for the results, in which a run of this experiment is continued; None: a new
                one below $FEDRAY_RESULTS or ~/fedray_results.
            executor: "ray": run clients on workers of a Ray cluster, which is started on this
                machine if none is running; "serial": run clients in this process. None: "serial"
                for one worker without a GPU and without $RAY_ADDRESS, else "ray". Results are
                equal.
            callbacks: functions that are called after every round with a copy of its record.
            track: whether to log to MLflow, as the command does.

        Raises:
            UserError: if something is missing, or the folder holds another experiment.
            RunFailed: if a callback raises an error, or the cluster fails.
            CodeError: if code of the method or model raises an error.
        """
        folder, executor = self._place(out, executor)
        run_to_end(self._resolved, folder, executor, track=track, callbacks=list(callbacks))
        return Result(folder)

    def rounds(
        self,
        out: str | Path | None = None,
        *,
        executor: ExecutorName | None = None,
        callbacks: Iterable[Callback] = (),
        track: bool = True,
    ) -> Generator[Round, None, None]:
        """Run the experiment and yield the record of every round; arguments as for `train`.

        Closing the iterator early stops the run; another call with the same `out` continues it.
        """
        folder, executor = self._place(out, executor)
        options: dict[str, Any] = {"track": track, "callbacks": list(callbacks)}
        with started(self._resolved, folder, executor, **options) as rounds:
            yield from rounds

    def _place(
        self, out: str | Path | None, executor: ExecutorName | None
    ) -> tuple[Path, ExecutorName]:
        """Return the folder and the executor of a run."""
        new = new_place(results_home() / "runs", self.name)
        folder = new if out is None else Path(out).expanduser().resolve()
        return folder, executor or executor_for(self._resolved.workers, self._resolved.gpus)


def _pairs(settings: Mapping[str, Any] | None, keys: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, plain(value)) for key, value in {**(settings or {}), **keys}.items()]


def _tree(base: str | Path | Mapping[str, Any]) -> Tree:
    """Return the keys of an experiment, merged with the experiment that it extends."""
    if not isinstance(base, Mapping):
        return read_experiment(str(base))
    tree = plain(base)
    extends = tree.pop("extends", None)
    return tree if extends is None else merge(read_experiment(str(extends)), tree)


def plain(value: Any) -> Any:
    """Return a value with the types of YAML: paths become strings, tuples become lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
