"""Resume a run in its folder: read once what it left, refuse here what does not fit.

config.yaml, result.json and rounds.jsonl are read before anything is computed, and compared with
the experiment, its data and its files. The checkpoint names the round after which the run goes on;
rounds after it are removed when the next one is written. Without a checkpoint the run begins again
at round 0, but never over rounds whose checkpoint is missing.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from fedray.checkpoint import CheckpointStore
from fedray.config import Experiment, files_of, load_experiment, read_mapping
from fedray.errors import UserError
from fedray.federation import Snapshot
from fedray.records import EarlierEnvironment, Run, RunFolder, RunInfo
from fedray.runtime.assembly import Assembly

log = logging.getLogger(__name__)


def load_checkpoint(
    folder: RunFolder, before: Run | None, store: CheckpointStore
) -> tuple[Snapshot | None, Run | None]:
    """Return the last checkpoint, and the run up to its round; None, None for a new run.

    Args:
        folder: the run's.
        before: what an earlier process wrote; None without a result.
        store: of the run's checkpoints.

    Raises:
        UserError: if a file is damaged, or the rounds are not those of the checkpoint.
    """
    checkpoint = store.load()
    if checkpoint is None:
        check_nothing_lost(folder, before)
        store.tidy()
        return None, None
    done = checkpoint.snapshot.round
    earlier = (before or folder.read()).until(done)
    if earlier.done != done or earlier.rounds_checksum != checkpoint.rounds_checksum:
        raise UserError(
            f"the rounds in {folder.path} are not those of its checkpoint of round {done}; "
            f"restore {folder.result.name} and {folder.rounds_file.name} from a copy, or start "
            "anew with another --out"
        )
    folder.first_analyses(done)  # refuse a damaged file before anything is changed
    store.tidy()
    return checkpoint.snapshot, earlier


def resumed_info(info: RunInfo, earlier: Run, folder: RunFolder) -> RunInfo:
    """Return a resumed run's info, with the earlier environment if it was another one."""
    before = list(earlier.info.earlier_environments)
    last = EarlierEnvironment(earlier.done, earlier.info.environment)
    if before and before[-1].until_round >= earlier.done:  # nothing that came after it counts
        last = before.pop()
    changes = last.environment.changes(info.environment)
    if changes:
        log.warning(
            "%s goes on after round %d in another environment than before (%s); %s names both",
            folder.path,
            earlier.done,
            "; ".join(changes),
            folder.result.name,
        )
        before.append(last)
    return replace(info, earlier_environments=tuple(before))


def check_experiment(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse a folder in which another experiment was run."""
    if not folder.config.exists():
        return
    before = load_experiment(read_mapping(folder.config))
    if before.identity() == experiment.identity():
        return
    difference = _first_difference(before.reproducibility_key(), experiment.reproducibility_key())
    raise UserError(
        f"{folder.path} holds another experiment ({difference}); give --resume {folder.path} alone "
        "to go on with what it holds, or name another folder with --out"
    )


def check_same(folder: RunFolder, before: RunInfo, assembly: Assembly) -> None:
    """Refuse to resume or test a run whose data, files, clients or experiment have changed."""
    keys = assembly.experiment.data
    where = f"data.root={keys.root}" if keys.root else f"data.source={keys.source.name}"
    pairs = {f"images or labels of {where}": (before.data_sha256, assembly.data.images.sha256)}
    pairs |= {
        f"contents of {key}={path}": (before.files_sha256.get(key), assembly.files[key])
        for key, path in files_of(assembly.experiment).items()
    }
    for what, (then, now) in pairs.items():
        if then is not None and then != now:
            raise UserError(
                f"the {what} are not what {folder.path} began with (content hash {then[:12]}, now "
                f"{now[:12] or 'missing'}); restore it, or start anew with another --out"
            )
    partition = before.partition_sha256
    if partition not in (None, assembly.data.sha256):
        raise UserError(
            f"the clients' images are not those that {folder.path} began with (hash of the "
            f"partition {partition[:12]}, now {assembly.data.sha256[:12]}); go on with the "
            f"versions of packages that {folder.result} names, or start anew with another --out"
        )
    if before.identity != assembly.identity:
        raise UserError(
            f"{folder.result} is of another experiment than {folder.config} and the given keys; "
            "restore both from a copy, or start anew with another --out"
        )


def check_nothing_lost(folder: RunFolder, before: Run | None) -> None:
    """Refuse to begin again at round 0 where rounds were done and their checkpoint is missing.

    A run with checkpoint_every=0 keeps none on purpose, so it begins again. So does one that was
    killed before its first checkpoint, in round 0.
    """
    if before is None and folder.has_rounds:
        before = folder.read()
    if before is None or before.done < 1 or before.info.config.get("checkpoint_every") == 0:
        return
    raise UserError(
        f"{folder.path} has the rounds up to {before.done} and no checkpoint of them; restore "
        f"{folder.path / 'checkpoints'} from a copy, or, to begin again at round 0, remove "
        f"{folder.result.name} and {folder.rounds_file.name} there"
    )


def _first_difference(before: Any, now: Any, place: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}, key=lambda key: (key != "name", key)):
            if before.get(key) != now.get(key):
                inner = f"{place}.{key}" if place else str(key)
                return _first_difference(before.get(key), now.get(key), inner)
    return f"{place} was {before!r}, now {now!r}"
