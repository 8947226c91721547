"""What a run's folder holds, to be held against the undisturbed run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedray.checkpoint import CheckpointStore
from fedray.core import algorithms
from fedray.core.state import leaves
from fedray.errors import UserError
from fedray.records import MEASURED_SECONDS, Run, RunFolder

_FILES = {
    ".lock",
    "checkpoints",
    "config.yaml",
    "error.txt",
    "matrices.json",
    "models",
    "partition.json",
    "partition.png",
    "result.json",
    "tracking.json",
}


def difference(out: Path, undisturbed: Path) -> str:
    """What distinguishes a finished run from the undisturbed one; "" when nothing does."""
    try:
        mine, theirs = RunFolder(out).read(), RunFolder(undisturbed).read()
    except UserError as error:
        return str(error)
    return (
        _rounds_difference(mine, theirs)
        or _tensors_difference(_tensors(out), _tensors(undisturbed))
        or _leftovers(out)
    )


def _rounds_difference(mine: Run, theirs: Run) -> str:
    numbers = [done.round for done in mine.rounds]
    if numbers != list(range(theirs.done + 1)):
        return f"the rounds are {numbers}"
    for one, other in zip(mine.rounds, theirs.rounds, strict=True):
        first, second = one.to_json(), other.to_json()
        differing = [k for k in second if k not in MEASURED_SECONDS and first[k] != second[k]]
        if differing:
            key = differing[0]
            return f"round {one.round}: {key} is {first[key]}, undisturbed {second[key]}"
    for name in ("identity", "data_sha256", "partition_sha256"):
        if getattr(mine.info, name) != getattr(theirs.info, name):
            return f"{name} differs"
    return ""


def _tensors(out: Path) -> dict[str, Any]:
    """Every tensor of the last checkpoint, by place."""
    algorithms.names()  # all are read: late replies have types of theirs
    store = CheckpointStore(out, RunFolder(out).read().info.identity)
    found = store.load()
    if found is None:
        return {}
    clients = {str(client): vars(state) for client, state in found.clients.items()}
    late = {
        f"late {item.client} {item.step} {item.due} {place}": tensor
        for item in found.snapshot.late
        for place, _, _, tensor in item.uplink.tensors()
    }
    tree = {"server": found.snapshot.server, "clients": clients, **late}
    return {
        f"{found.snapshot.round} {'/'.join(path)} {tensor.dtype}": tensor.tolist()
        for path, tensor in leaves(tree)
    }


def _tensors_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    if mine.keys() != theirs.keys():
        return f"the checkpoints hold other tensors: {sorted(mine.keys() ^ theirs.keys())[:3]}"
    differing = [name for name in mine if mine[name] != theirs[name]]
    return f"tensor {differing[0]} differs" if differing else ""


def _leftovers(out: Path) -> str:
    """Files that nobody needs when a run has ended."""
    left = sorted({path.name for path in out.iterdir()} - _FILES)
    store = CheckpointStore(out, RunFolder(out).read().info.identity)
    store.load()
    left += sorted({p.name for p in store.folder.iterdir()} - {"states"})[1:]
    left += store.states.unused_files()
    left += sorted({path.name for path in out.glob("models/*")} - {"best", "last"})
    left += [str(path) for path in out.rglob("*.tmp*")]
    return f"left over: {left}" if left else ""


def words_to_go_on(experiment: Path, out: Path, extra: Sequence[str] = ()) -> list[str]:
    """The command that begins a run, or goes on with the one in the folder."""
    if RunFolder(out).config.is_file():
        return ["--resume", str(out), *extra]
    return [str(experiment), *extra, "--out", str(out)]
