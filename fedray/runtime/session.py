"""One run in one folder: assemble, go on where it stopped, write what happened.

`config.yaml` is the complete experiment; `partition.json` who owns which image, with its sha256,
and `partition.png` shows it; `result.json` every round so far; `checkpoints/` the latest federated
checkpoint.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedray.checkpoint import CheckpointStore
from fedray.config import Experiment, dump_yaml, load_experiment, read_mapping
from fedray.data.picture import draw_partition
from fedray.errors import UserError
from fedray.federation import Executor, Federation, RoundResult
from fedray.files import write_atomic, write_json
from fedray.runtime.assembly import Assembly, pick_device
from fedray.runtime.memory import peak_rss

Record = dict[str, Any]
LOCK_SECONDS = 20  # a killed run's actors need a few seconds to end


class Session:
    """One federated run and its folder.

    Args:
        experiment: what to run.
        out: the run's folder; a run of the same experiment in it goes on after its checkpoint.
        make_executor: makes the executor from the assembled parts.
        began: when start-up began, in seconds since the epoch; for the start-up time.

    Raises:
        UserError: when the folder holds another experiment, or something is missing.
    """

    def __init__(
        self,
        experiment: Experiment,
        out: Path,
        make_executor: Callable[[Assembly], Executor],
        began: float | None = None,
    ) -> None:
        self.experiment = experiment
        self.out = out
        self._began = time.time() if began is None else began
        check_folder(out, experiment)
        torch.set_num_threads(experiment.threads)
        self._assembly = Assembly(experiment)
        _ = self._assembly.data
        server = self._assembly.server(pick_device(experiment.server_gpus))
        self._executor = make_executor(self._assembly)
        self._federation = Federation(
            self._assembly.algorithm,
            self._executor,
            self._assembly.gate,
            self._assembly.plan,
            server,
            self._assembly.streams,
        )
        self._store = CheckpointStore(out, experiment.identity())
        self._lock = FileLock(out / ".lock", timeout=LOCK_SECONDS)

    def rounds(self) -> Iterator[Record]:
        """Yield each round as result.json holds it; after a resume, only the new ones.

        Nothing is written before the first round has shown that the experiment works. The files
        are up to date whenever a round that is due for a checkpoint has been yielded.

        Raises:
            UserError: when another process is running in the folder.
        """
        if self.out.exists():
            self._claim()
        found = self._store.load()
        result = self._fresh()
        resume = None
        if found is not None:
            self._executor.restore(found.clients)
            resume = found.snapshot
            earlier = read_result(self.out)
            result["rounds"] = [r for r in earlier["rounds"] if r["round"] <= resume.round]
            result["wall_seconds"] = earlier["wall_seconds"]
            result["startup_seconds"] = earlier["startup_seconds"]
            result["peak_rss_bytes"] = earlier["peak_rss_bytes"]
        spent, started, described = result["wall_seconds"], time.time(), False
        try:
            for done in self._federation.rounds(resume):
                if not described:
                    self._describe()
                    described = True
                record = done.as_json()
                result["rounds"].append(record)
                if done.round == 0:
                    result["startup_seconds"] = time.time() - self._began
                result["wall_seconds"] = spent + time.time() - started
                result["peak_rss_bytes"] = max(result["peak_rss_bytes"], peak_rss())
                if self._is_due(done.round):
                    self._save(result, done)
                yield record
        finally:
            self._executor.close()
            self._lock.release(force=True)

    def _claim(self) -> None:
        """Keep others out of the folder; a process that was killed has let go of it."""
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(
                f"another process is running in {self.out}; wait for its end, or choose another "
                "folder with --out"
            ) from None

    def _describe(self) -> None:
        """Write what does not change from round to round."""
        data = self._assembly.data
        self.out.mkdir(parents=True, exist_ok=True)
        self._claim()
        write_atomic(self.out / "config.yaml", dump_yaml(self.experiment.tree()))
        if not (self.out / "partition.json").exists():
            write_json(self.out / "partition.json", data.manifest())
            draw_partition(data.histogram(), data.class_names, self.out / "partition.png")

    def _is_due(self, round_: int) -> bool:
        every = self.experiment.checkpoint_every
        return round_ == self.experiment.rounds or (every > 0 and round_ % every == 0)

    def _save(self, result: Record, done: RoundResult) -> None:
        """Write result.json first: it may be ahead of the checkpoint, never behind it."""
        write_json(self.out / "result.json", {**result, **summary(result["rounds"])})
        if done.matrices:
            write_json(self.out / "matrices.json", done.matrices)
        if self.experiment.checkpoint_every > 0:
            stepped = self._executor.export(sorted(self._federation.stepped))
            self._store.save(self._federation.snapshot, stepped, {})
            self._federation.stepped.clear()

    def _fresh(self) -> Record:
        return {
            "name": self.experiment.name,
            "scale": self.experiment.scale,
            "algorithm": self.experiment.algorithm.name,
            "config": self.experiment.tree(),
            "seed": self.experiment.seed,
            "identity": self.experiment.identity(),
            "versions": versions(),
            "partition_sha256": self._assembly.data.sha256,
            "data_sha256": self._assembly.data.images.sha256,
            "architectures": list(self._assembly.architectures),
            "rounds": [],
            "wall_seconds": 0.0,
            "startup_seconds": 0.0,
            "peak_rss_bytes": 0,
        }


def check_folder(out: Path, experiment: Experiment) -> None:
    """Refuse a folder in which another experiment was run.

    Raises:
        UserError: naming the first key that differs.
    """
    path = out / "config.yaml"
    if not path.exists():
        return
    before = load_experiment(read_mapping(path))
    if before.identity() == experiment.identity():
        return
    differing = _first_difference(before.essence(), experiment.essence())
    raise UserError(
        f"{out} holds another experiment ({differing}); pass the same experiment and keys, "
        "or another folder"
    )


def _first_difference(before: Any, now: Any, place: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}, key=lambda key: (key != "name", key)):
            if before.get(key) != now.get(key):
                inner = f"{place}.{key}" if place else str(key)
                return _first_difference(before.get(key), now.get(key), inner)
    return f"{place} was {before!r}, now {now!r}"


def read_result(out: Path) -> Record:
    """Read result.json of a run's folder.

    Raises:
        UserError: when it is missing or not JSON.
    """
    path = out / "result.json"
    try:
        result: Record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return result


def summary(rounds: list[Record]) -> Record:
    """`best` (highest local accuracy and its round) and `final`, of the evaluated rounds."""
    evaluated = [r for r in rounds if "local_accuracy" in r["metrics"]]
    if not evaluated:
        return {"best": None, "final": None}

    def short(record: Record) -> Record:
        metrics = record["metrics"]
        return {
            "round": record["round"],
            "local_accuracy": metrics["local_accuracy"],
            "local_accuracy_weighted": metrics["local_accuracy_weighted"],
        }

    best = max(evaluated, key=lambda r: (r["metrics"]["local_accuracy"], -r["round"]))
    return {"best": short(best), "final": short(evaluated[-1])}


@cache
def versions() -> dict[str, str]:
    """Versions of what makes the numbers, and the git commit when run from a checkout."""
    found = {"python": platform.python_version()}
    for package in ("fedray", "torch", "torchvision", "transformers", "numpy", "ray", "optuna"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    commit = git_commit()
    if commit:
        found["git"] = commit
    return found


def git_commit() -> str | None:
    """The commit of the checkout that this package runs from, or None."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
