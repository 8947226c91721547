"""Damage to the files of runs: each is refused with one sentence, or changes no number.

Small runs of three methods, with late replies, client memory and a server's state, are made once:
to the end, and killed after rounds 1 and 2. Then, again and again, a copy of one is damaged, read
as the report and the upload read it, and gone on with by `fedray.run --resume`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.faults.tally import Tally
from fedray.checkpoint import CheckpointStore
from fedray.cli import run as command
from fedray.config import EXECUTION_KEYS
from fedray.core.state import leaves
from fedray.errors import UserError
from fedray.records import MEASURED_SECONDS, Round, RunFolder
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import resolve
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session

METHODS = {
    "fedavg_digits": (),
    "scaffold_digits": ("participation=0.5", "faults.late=0.5"),
    "fedtsp_digits": ("text.encoder=random", "text.encoder.dim=16", "algorithm.prompt_length=0"),
}
"""A shipped experiment each, and what is laid on it."""

SMALL = (
    *("rounds=4", "local_epochs=1", "data.clients=4", "data.samples=240", "model.feature_dim=16"),
    *("data.partition=dirichlet", "data.partition.alpha=0.5", "cpus=1"),
)
KILLED_AFTER = (1, 2)
MEASURED = ("wall_seconds", "startup_seconds", "peak_rss_bytes", "versions", "name")


@dataclasses.dataclass(frozen=True)
class Victim:
    """A run as its folder was at some moment, and what may be put into it.

    Attributes:
        folder: as it was: killed after round 2, or at the end.
        older: the same run when it was killed after round 1.
        twin: another run of the same experiment, at the same moment.
        stranger: a run with another seed, at the same moment.
        expected: all numbers of the undisturbed run.
    """

    folder: Path
    older: Path
    twin: Path
    stranger: Path
    expected: Any = dataclasses.field(repr=False)


class Nothing(Exception):
    """This victim has nothing that could be damaged in this way."""


# --- the runs -----------------------------------------------------------------------------------


def make_victims(home: Path) -> list[Victim]:
    """Run every method with two seeds, the first one twice; keep the folders of each moment."""
    victims = []
    for method, extra in METHODS.items():
        for name, seed in (("run", 0), ("twin", 0), ("stranger", 1)):
            _run(home / method / name, method, (*SMALL, *extra, f"seed={seed}"))
        runs = [home / method / name for name in ("run", "twin", "stranger")]
        expected = numbers(runs[0] / "end")
        for moment in ("round_2", "end"):
            own, twin, stranger = (each / moment for each in runs)
            victims.append(Victim(own, runs[0] / "round_1", twin, stranger, expected))
    return victims


def _run(home: Path, method: str, keys: tuple[str, ...]) -> None:
    """Run to the end; keep copies of the folder as a kill at that moment would leave it."""
    out = home / "end"
    experiment = resolve(method, list(keys))
    session = Session(experiment, out, _serial)
    for done in session.rounds():
        if done.round in KILLED_AFTER:
            session.settle()
            shutil.copytree(out, home / f"round_{done.round}")


def _serial(assembly: Assembly) -> SerialExecutor:
    return SerialExecutor(assembly, torch.device("cpu"))


def numbers(out: Path) -> Any:
    """Everything that a run has come to, but for where and how fast it was made."""
    result = json.loads((out / "result.json").read_text())
    config = result["config"]
    for key in (*MEASURED, "checksum", "rounds_checksum"):
        del result[key]
    for key in ("name", *EXECUTION_KEYS):
        section, _, last = key.rpartition(".")
        del (config[section] if section else config)[last]
    for record in result["rounds"]:
        for key in MEASURED_SECONDS:
            record.pop(key, None)
    return result, _tensors(out, result["identity"])


def _tensors(out: Path, identity: str) -> dict[str, list[Any]]:
    """Every tensor of the last checkpoint, in order, as plain numbers."""
    found = CheckpointStore(out, identity).load()
    if found is None:
        raise UserError(f"{out} has no checkpoint")
    clients = {str(c): {"model": s.model, "memory": s.memory} for c, s in found.clients.items()}
    late = {
        f"late {item.client} {item.step} {item.due} {place}": tensor
        for item in found.snapshot.late
        for place, _, _, tensor in item.uplink.tensors()
    }
    tree = {"server": found.snapshot.server, **clients, **late}
    return {"/".join(path): [str(t.dtype), t.tolist()] for path, t in leaves(tree)}


# --- damages ------------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    """The files that say something; pictures and tracebacks do not."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in found if path.suffix != ".png" and path.name != ".lock"]


def _file(at: random.Random, folder: Path, *suffixes: str) -> Path:
    """A file, each as likely as another."""
    found = [path for path in _files(folder) if not suffixes or path.suffix in suffixes]
    if not found:
        raise Nothing
    return at.choice(found)


def _put(source: Path, target: Path) -> None:
    """Put a file into another's place, not into that of what is linked with it."""
    content = source.read_bytes()
    target.unlink(missing_ok=True)
    target.write_bytes(content)


def flip_bit(at: random.Random, victim: Victim, folder: Path) -> str:
    """Flip one bit."""
    path = _file(at, folder)
    content = bytearray(path.read_bytes())
    place, bit = at.randrange(len(content)), at.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {path.name}"


def cut(at: random.Random, victim: Victim, folder: Path) -> str:
    """Cut a file short, often to nothing or by a few bytes."""
    path = _file(at, folder)
    size = path.stat().st_size
    left = at.choice([0, at.randrange(size), max(0, size - at.randint(1, 8))])
    path.write_bytes(path.read_bytes()[:left])
    return f"{path.name} cut to {left} of {size} bytes"


def append(at: random.Random, victim: Victim, folder: Path) -> str:
    """Append bytes, of its own or others."""
    path = _file(at, folder)
    content = path.read_bytes()
    more = at.choice([at.randbytes(at.randint(1, 64)), content[-at.randint(1, 64) :], content])
    path.write_bytes(content + more)
    return f"{len(more)} bytes appended to {path.name}"


def from_another_run(at: random.Random, victim: Victim, folder: Path) -> str:
    """Put the same file, or the whole checkpoint, of another run into this one."""
    other, what = at.choice([(victim.twin, "the twin"), (victim.stranger, "another seed")])
    if at.random() < 0.2:
        shutil.rmtree(folder / "checkpoints")
        shutil.copytree(other / "checkpoints", folder / "checkpoints")
        return f"checkpoints of {what}"
    path = _file(at, folder)
    source = other / path.relative_to(folder)
    if not source.is_file():  # files of states have names of their own
        found = [each for each in _files(other) if each.suffix == path.suffix]
        if not found:
            raise Nothing
        source = at.choice(found)
    _put(source, path)
    return f"{path.name} is {source.name} of {what}"


def from_another_round(at: random.Random, victim: Victim, folder: Path) -> str:
    """Put a file of an older moment into this one, or a file of another round into its place."""
    path = _file(at, folder)
    older = [each for each in _files(victim.older) if each.suffix == path.suffix]
    same = [each for each in older if each.name == path.name]
    if not older:
        raise Nothing
    source = at.choice(same or older)
    _put(source, path)
    return f"{path.name} replaced by {source.name} of round 1"


def _rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, Any]]) -> None:
    """Read a file of tensors, change it, and write it with the same header."""
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = file.metadata()
    path.unlink()
    save_file({name: t.clone() for name, t in change(found).items()}, path, header)


def change_tensors(at: random.Random, victim: Victim, folder: Path) -> str:
    """Exchange two tensors, give one another's name, change its type or shape, or leave it out."""
    path = _file(at, folder, ".safetensors")
    how = at.choice(["exchange", "rename", "type", "shape", "drop", "value"])

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        names = sorted(tensors)
        if len(names) < 2:
            raise Nothing
        one, two = at.sample(names, 2)
        changed = dict(tensors)
        if how == "exchange":
            changed[one], changed[two] = tensors[two], tensors[one]
        elif how == "rename":
            changed[f"{one}x"] = changed.pop(one)
        elif how == "type":
            changed[one] = tensors[one].to(torch.float64 if at.random() < 0.5 else torch.int32)
        elif how == "shape":
            changed[one] = tensors[one].reshape(-1, 1)
        elif how == "drop":
            del changed[one]
        else:
            changed[one] = tensors[one] + 1
        return changed

    _rewrite(path, change)
    return f"{how} in {path.name}"


def reorder_tensors(at: random.Random, victim: Victim, folder: Path) -> str:
    """Nest a file's tensors in another order."""
    path = _file(at, folder, ".safetensors")
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        structure = json.loads(file.metadata()["structure"])
    turned = _reversed(structure)
    if not found:
        raise Nothing
    path.unlink()
    save_file(found, path, {"structure": json.dumps(turned)})
    return f"order of tensors in {path.name}"


def _reversed(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {key: _reversed(value) for key, value in reversed(tree.items())}


def edit_json(at: random.Random, victim: Victim, folder: Path) -> str:
    """Change, or take out, one value of a JSON file or of a line of rounds.jsonl."""
    path = _file(at, folder, ".json", ".jsonl")
    lines = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
    number = at.randrange(len(lines))
    tree = json.loads(lines[number])
    branch, key = at.choice(list(_places(tree)))
    before = copy.deepcopy(branch[key])
    if at.random() < 0.25:
        del branch[key]
        what = f"{key} of {before!r:.40} left out"
    else:
        branch[key] = _other(at, before)
        what = f"{key} {before!r:.40} is {branch[key]!r:.40}"
    lines[number] = json.dumps(tree)
    path.write_text("\n".join(lines) + "\n")
    return f"{path.name}: {what}"


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = tree if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _other(at: random.Random, value: Any) -> Any:
    """Another value, of the same type or not."""
    others = [None, [], {}, "x", -1, 1e300, float("nan"), True, [[value]], {"x": value}]
    if isinstance(value, bool):
        others += 3 * [not value]
    elif isinstance(value, int | float):
        others += 3 * [value + 1, value * 2 + 1]
    elif isinstance(value, str):
        others += 3 * [value[1:] + "0"]
    return at.choice([other for other in others if repr(other) != repr(value)])


def wrong_rounds(at: random.Random, victim: Victim, folder: Path) -> str:
    """Leave out, double or exchange rounds, or call a checkpoint that of another round."""
    if at.random() < 0.3:
        place = next((folder / "checkpoints").glob("round_*"))
        name = f"round_{at.choice([0, 1, 3, 7, 100000]):05d}"
        if name == place.name:
            raise Nothing
        place.rename(place.with_name(name))
        return f"{place.name} called {name}"
    path = folder / "rounds.jsonl"
    in_result = not path.exists()
    if in_result:
        path = folder / "result.json"
        tree = json.loads(path.read_text())
        rounds = tree["rounds"]
    else:
        rounds = path.read_text().splitlines(keepends=True)
    one, two = at.sample(range(len(rounds)), 2)
    how = at.choice(["left out", "doubled", "exchanged"])
    if how == "left out":
        del rounds[one]
    elif how == "doubled":
        rounds.insert(one, rounds[one])
    else:
        rounds[one], rounds[two] = rounds[two], rounds[one]
    path.write_text(json.dumps(tree) if in_result else "".join(rounds))
    return f"round {one} of {path.name} {how}"


def remove(at: random.Random, victim: Victim, folder: Path) -> str:
    """Remove a file, a checkpoint or all of them."""
    places = [*_files(folder), folder / "checkpoints", *(folder / "checkpoints").glob("round_*")]
    path = at.choice(places)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return f"{path.name} removed"


def replace(at: random.Random, victim: Victim, folder: Path) -> str:
    """Put something else in a file's place."""
    path = _file(at, folder)
    texts = [b"", b"{}", b"[]", b"null", b"\xff\x00\xfe", b"3", b"NaN", b'{"checksum": 1}']
    content = at.choice([*texts, b"[" * 100_000, b'{"a":' * 100_000, at.randbytes(200)])
    path.write_bytes(content)
    return f"{path.name} is {content[:20]!r}"


DAMAGES = (
    *(flip_bit, flip_bit, cut, append, from_another_run, from_another_round, change_tensors),
    *(reorder_tensors, edit_json, edit_json, wrong_rounds, remove, replace),
)
"""In turn; what is there twice is done twice as often."""


# --- what comes of it ---------------------------------------------------------------------------


def go_on(folder: Path) -> tuple[int, str]:
    """`fedray.run --resume FOLDER` in this process; exit code and what it printed on stderr."""
    printed = io.StringIO()
    words = ["--resume", str(folder), "--executor", "serial", "--no-track", "--debug"]
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        code = command.main(words)
    return code, printed.getvalue()


def read(folder: Path) -> Any:
    """What the report and the upload read of a run."""
    run = RunFolder(folder)
    return run.read(), run.read_matrices(), run.class_names()


def outcome(victim: Victim, folder: Path) -> tuple[bool, str]:
    """Whether it may be so, and what came of a damaged folder, read and then gone on with."""
    read_it = "read"
    try:
        if not _is_true(read(folder), victim):
            return False, "read with other content"
    except UserError as error:
        read_it = "not read"
        if "\n" in str(error):
            return False, f"read: more than one line: {error}"
    before = _content(folder)
    code, printed = go_on(folder)
    if code == 0:
        if numbers(folder) != victim.expected:
            return False, "other numbers"
        return True, f"{read_it}, same numbers"
    lines = printed.strip().splitlines()
    if code != 2 or len(lines) != 1 or not lines[0].startswith("error: "):
        return False, f"exit code {code}: {printed[-300:]}"
    if _content(folder) != before:
        return False, f"refused, but the folder was changed: {printed}"
    return True, f"{read_it}, refused"


def _is_true(found: Any, victim: Victim) -> bool:
    """Whether what was read has the numbers that were written of the run that it says it is.

    The last rounds may be missing, as after a kill; another run's result.json may be there whole.
    """
    run, matrices, names = found
    for source in (victim.folder, victim.stranger):
        whole, _, all_names = read(source)
        rounds = [_timeless(done) for done in whole.rounds[: len(run.rounds)]]
        if run.info == whole.info and [_timeless(done) for done in run.rounds] == rounds:
            break
    else:
        return False
    analyses = [read(source)[1] for source in (victim.folder, victim.stranger, victim.older)]
    return matrices in ({}, *analyses) and names in ([], all_names)


def _timeless(done: Round) -> Round:
    return dataclasses.replace(done, seconds=0.0, client_seconds=None)


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in _files(folder)}


def run(count: int, seed: int, folder: Path) -> Tally:
    """Damage runs `count` times; what came of each."""
    victims, tally = make_victims(folder / "runs"), Tally()
    attempt = 0
    while tally.count < count:
        at = random.Random(f"{seed} {attempt}")
        damage, victim = DAMAGES[attempt % len(DAMAGES)], at.choice(victims)
        attempt += 1
        damaged = folder / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(victim.folder, damaged)
        try:
            what = damage(at, victim, damaged)
        except Nothing:
            continue
        where = f"{what} ({victim.folder.parts[-3]}, {victim.folder.name}, attempt {attempt - 1})"
        try:
            fine, came = outcome(victim, damaged)
        except Exception as error:
            fine, came = False, f"{type(error).__name__}: {error}"
        if fine:
            tally.add(damage.__name__, came)
        else:
            tally.add_wrong(damage.__name__, f"{where}: {came}")
    return tally
