"""Resumption of a run in its folder: reads the earlier records and refuses those that do not fit.

run.json and rounds.jsonl are read before any computation, and compared with the experiment, its
data and its files. The run continues after the round of the checkpoint; later
rounds are removed when the next one is written. Without a checkpoint the run starts at round 0, but
never overwrites rounds whose checkpoint is missing.
"""

from __future__ import annotations

import logging
import shlex
from dataclasses import replace
from typing import Any

from fedray.config import (
    Experiment,
    files_of,
    load_experiment,
    version_changes,
)
from fedray.errors import UserError
from fedray.runtime.assembly import Assembly
from fedray.storage.run import EarlierEnvironment, Run, RunInfo
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import StateStore
from fedray.trees import Snapshot

log = logging.getLogger(__name__)


def load_checkpoint(
    folder: RunFolder, before: Run | None, store: StateStore, assembly: Assembly
) -> tuple[Snapshot | None, Run | None]:
    """Return the last checkpoint, and the run up to its round; (None, None) for a new run.

    Args:
        folder: the run's folder.
        before: the run that an earlier process recorded; None if there is no result.
        store: the states of the run.
        assembly: the parts of the run.

    Raises:
        UserError: if a file is damaged, or the rounds do not match the checkpoint.
    """
    checkpoint = store.load(assembly.identity)
    if checkpoint is None:
        check_nothing_lost(folder, before)
        store.tidy()
        return None, None
    done = checkpoint.snapshot.round
    earlier = (before or folder.read()).until(done)
    mark = folder.mark(len(earlier.rounds))
    if earlier.done != done or mark != checkpoint.facts["rounds"]:
        raise UserError(
            f"the rounds in {folder.rounds_file} do not match its checkpoint of round {done}; "
            "restore the file from a copy, or start a new run with another --out"
        )
    folder.matrices()  # fails for a damaged file, before anything is changed
    store.tidy()
    return checkpoint.snapshot, earlier


def resumed_info(info: RunInfo, earlier: Run, folder: RunFolder) -> RunInfo:
    """Return a resumed run's info, with the earlier environment if it differs."""
    before = list(earlier.info.earlier_environments)
    last = EarlierEnvironment(earlier.done, earlier.info.environment)
    if before and before[-1].until_round >= earlier.done:  # later rounds are discarded
        last = before.pop()
    changes = last.environment.changes(info.environment)
    if changes:
        log.warning(
            "%s continues after round %d in a different environment (%s); %s records both",
            folder.path,
            earlier.done,
            "; ".join(changes),
            folder.head.name,
        )
        before.append(last)
    return replace(info, earlier_environments=tuple(before))


def check_experiment(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse a folder that holds another experiment."""
    if not folder.has_run:
        return
    before = load_experiment(folder.experiment())
    if before.identity() == experiment.identity():
        return
    difference = _first_difference(before.reproducibility_key(), experiment.reproducibility_key())
    raise UserError(
        f"{folder.path} holds another experiment ({difference}); use --resume "
        f"{shlex.quote(str(folder.path))} alone to continue that experiment, or choose another "
        "folder with --out"
    )


def check_same(folder: RunFolder, before: RunInfo, assembly: Assembly) -> None:
    """Refuse to resume or test a run whose data, files, clients or experiment have changed."""
    changed = version_changes(before.config, assembly.experiment.record())
    if changed:
        raise UserError(
            f"{folder.path} was started with other code than today's, which gives other numbers "
            f"({changed[0]}); use the code of that time (the package version is in "
            f"{folder.head}), or start a new run with another --out"
        )
    keys = assembly.experiment.data
    where = f"data.root={keys.root}" if keys.root else f"data.source={keys.source.name}"
    hashes = {f"images or labels of {where}": (before.data_sha256, assembly.data.images.sha256)}
    hashes |= {
        f"contents of {key}={path}": (before.files_sha256.get(key), assembly.files[key])
        for key, path in files_of(assembly.experiment).items()
    }
    for subject, (earlier, current) in hashes.items():
        if earlier is not None and earlier != current:
            raise UserError(
                f"the {subject} have changed since {folder.path} was started (content hash "
                f"{earlier[:12]}, now {current[:12] or 'missing'}); restore them, or start a new "
                "run with another --out"
            )
    partition = before.partition_sha256
    if partition not in (None, assembly.data.sha256):
        raise UserError(
            f"the partition has changed since {folder.path} was started (hash "
            f"{partition[:12]}, now {assembly.data.sha256[:12]}); use the package versions that "
            f"{folder.head} names, or start a new run with another --out"
        )
    if before.identity != assembly.identity:
        raise UserError(
            f"{folder.head} has another identity than its settings and the given keys; restore it "
            "from a copy, or start a new run with another --out"
        )


def check_nothing_lost(folder: RunFolder, before: Run | None) -> None:
    """Refuse to restart at round 0 if there are rounds whose checkpoint is missing.

    Two runs may restart: one with checkpoint_every=0, which writes no checkpoints, and one that
    was killed in round 0, before its first checkpoint.
    """
    if before is None or before.done < 1 or before.info.config.get("checkpoint_every") == 0:
        return
    raise UserError(
        f"{folder.path} has rounds up to {before.done} but no checkpoint; restore "
        f"{folder.states} from a copy, or, to restart at round 0, remove "
        f"{folder.rounds_file.name} there"
    )


def _first_difference(before: Any, after: Any, place: str = "") -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}, key=lambda key: (key != "name", key)):
            if before.get(key) != after.get(key):
                inner = f"{place}.{key}" if place else str(key)
                return _first_difference(before.get(key), after.get(key), inner)
    return f"{place} was {before!r}, now {after!r}"
