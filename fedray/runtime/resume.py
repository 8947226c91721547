"""Resumption of a run: reads the earlier records, and refuses those that do not fit.

The run continues after the round of its checkpoint; later rounds are removed when the next one is
written. Without a checkpoint it starts at round 0, but never overwrites rounds whose checkpoint is
missing.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from typing import Any

from fedray.base.errors import UserError
from fedray.base.trees import Snapshot
from fedray.config import Experiment, content_of, files_of, load_experiment
from fedray.evaluation.metrics import declared_metrics
from fedray.evaluation.protocols import analysis_metrics
from fedray.runtime.assembly import Assembly
from fedray.storage.environment import environment
from fedray.storage.run import Run, RunInfo
from fedray.storage.run_folder import RunFolder, mark_of
from fedray.storage.states import StateStore

log = logging.getLogger(__name__)


def load_checkpoint(
    folder: RunFolder, store: StateStore, assembly: Assembly
) -> tuple[Snapshot | None, Run | None]:
    """Return the last checkpoint, and the run up to its round; (None, None) for a new run.

    Args:
        folder: the run's folder.
        store: the states of the run.
        assembly: the parts of the run.

    Raises:
        UserError: if a file is damaged, or the rounds do not match the checkpoint.
    """
    checkpoint = store.load()
    if checkpoint is None:
        check_nothing_lost(folder)
        store.tidy()
        return None, None
    done = checkpoint.snapshot.round
    earlier = folder.read().until(done)
    if earlier.done != done or mark_of(folder.content(done + 1)) != checkpoint.facts["rounds"]:
        raise UserError(
            f"the rounds in {folder.rounds_file} do not match its checkpoint of round {done}; "
            "restore the file from a copy, or start a new run with another --out"
        )
    folder.matrices()  # fails for a damaged file, before anything is changed
    if changes := earlier.info.environment.changes(environment(assembly.experiment.threads)):
        how = "; ".join(changes)
        log.warning(
            f"{folder.path} continues after round {done} in a different environment ({how})"
        )
    store.tidy()
    return checkpoint.snapshot, earlier


def check_same(folder: RunFolder, experiment: Experiment, assembly: Assembly | None = None) -> None:
    """Refuse a folder that holds another experiment.

    With its parts, also refuse changed code, images, files or clients.
    """
    head = folder.read_head()
    was: dict[str, Any] = {"plugins": {one["module"]: one["sha256"] for one in head.plugins}}
    now: dict[str, Any] = {"plugins": {one.module: one.sha256 for one in experiment.plugins}}
    if was == now:  # else the recorded experiment cannot be resolved
        was = load_experiment(folder.experiment()).reproducibility_key()
        now = experiment.reproducibility_key()
    if was == now and assembly is not None:
        was, now = _facts(head), _facts(run_info(assembly))
    if changed := _first_difference(was, now):
        path = shlex.quote(str(folder.path))
        raise UserError(
            f"{folder.path} holds another experiment ({changed}); restore what it was started "
            f"with, use --resume {path} alone, or choose another folder with --out"
        )


def _facts(info: RunInfo) -> dict[str, Any]:
    """Return what determines a run's numbers beside its keys."""
    names = "data_sha256", "files_sha256", "identity", "partition_sha256"
    code = info.config.get("versions", {})
    return {"code": code, **{name: getattr(info, name) for name in names}}


def run_info(assembly: Assembly, retested: Mapping[str, Any] | None = None) -> RunInfo:
    """Return the facts that determine a run's numbers."""
    experiment, data = assembly.experiment, assembly.data
    return RunInfo(
        config=experiment.record(),
        identity=assembly.identity,
        environment=environment(experiment.threads),
        partition_sha256=data.sha256,
        data_sha256=data.images.sha256,
        metrics=(*declared_metrics(), *analysis_metrics(assembly.algorithm)),
        retested=retested,
        files_sha256={key: content_of(path) for key, path in files_of(experiment).items()},
        plugins=experiment.tree().get("plugins", ()),
    )


def check_nothing_lost(folder: RunFolder) -> None:
    """Refuse to restart at round 0 if there are rounds whose checkpoint is missing.

    Two runs may restart: one with checkpoint_every=0, which writes no checkpoints, and one that
    was killed in round 0, before its first checkpoint.
    """
    before = folder.read() if folder.has_run else None
    if before is None or before.done < 1 or before.info.config.get("checkpoint_every") == 0:
        return
    raise UserError(
        f"{folder.path} has rounds up to {before.done} but no checkpoint; restore "
        f"{folder.states} from a copy, or, to restart at round 0, remove "
        f"{folder.rounds_file.name} there"
    )


def _first_difference(before: Any, after: Any, place: str = "") -> str:
    """Return the first key whose values differ, and both; "" if none does."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}, key=lambda key: (key != "name", key)):
            inner = f"{place}.{key}" if place else str(key)
            if found := _first_difference(before.get(key), after.get(key), inner):
                return found
        return ""
    return "" if before == after else f"{place} was {before!r}, now {after!r}"
