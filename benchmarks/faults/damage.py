"""Damage a file of a run: every kind of file with every kind of damage, in turn.

Runs of two methods are made with two seeds; copies of their folders are kept as after a kill in
rounds 1 and 2, and at the end. One file of a copy is damaged. Reading the folder, and continuing it
by `fedray.run --resume`, must fail with one sentence or give the undisturbed run's numbers.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.experiments import write_experiments
from benchmarks.faults.harness import SERIAL, Tally, difference
from fedray.errors import UserError
from fedray.run import main as run_main
from fedray.runtime.resolve import resolve
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from fedray.storage.run_folder import RunFolder

METHODS, CPU = ("scaffold", "fedtsp"), torch.device("cpu")


def patch(draw: random.Random, old: bytes, pattern: bytes, bits: list[int]) -> bytes:
    """Flip bits of one byte that matches a pattern, or of the last byte."""
    places = [match.start() for match in re.finditer(pattern, old, re.DOTALL)] or [len(old) - 1]
    place = draw.choice(places)
    return old[:place] + bytes([old[place] ^ draw.choice(bits)]) + old[place + 1 :]


OTHERS = (b"{}", b"[]", b"null", b"\xff\x00", b"3", b'{"checksum": 1}', b"[" * 100_000)
EDITS: dict[str, Callable[[random.Random, bytes], bytes | None]] = {
    "bit flipped": lambda draw, old: patch(draw, old, b".", [1 << bit for bit in range(8)]),
    "digit changed": lambda draw, old: patch(draw, old, b"[0-7]", [*range(1, 8)]),
    "cut": lambda draw, old: old[: draw.choice([0, draw.randrange(len(old)), len(old) - 1])],
    "bytes appended": lambda draw, old: old + draw.choice([draw.randbytes(9), old[-9:], old]),
    "replaced": lambda draw, old: draw.choice([*OTHERS, draw.randbytes(200)]),
    "removed": lambda draw, old: None,
}
RUN, STRANGER, OLDER, END = "damaged", "of another run", "of another round", "undisturbed"
Victim = dict[str, Path]
"""A folder to damage, folders whose files may take the place of its own, and the whole run."""


def make_victims(home: Path) -> list[Victim]:
    """Run every method with two seeds; keep the folder of each moment."""
    home.mkdir(parents=True)
    experiments = write_experiments(home)
    for method, seed in itertools.product(METHODS, "01"):
        place, chosen = home / method / seed, resolve(str(experiments[method]), [f"seed={seed}"])
        session = Session(chosen, place / "end", lambda parts: SerialExecutor(parts, CPU))
        for done in session.rounds():
            if done.round in (1, 2):
                session.settle()
                shutil.copytree(place / "end", place / f"killed_{done.round}")
    return [
        {RUN: mine / moment, OLDER: mine / "killed_1", STRANGER: other / moment, END: mine / "end"}
        for mine, other in [(home / method / "0", home / method / "1") for method in METHODS]
        for moment in ("killed_2", "end")
    ]


def kind_of(name: str) -> str:
    """Return a path with every number or hash replaced by a star."""
    return re.sub(r"\w*\d\w*", "*", name)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by path, without pictures and locks."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = [path for path in paths if path.suffix != ".png" and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def do_damage(draw: random.Random, victim: Victim, folder: Path, kind: str, damage: str) -> bool:
    """Damage a file of a kind in a copy of a victim; return False if nothing can change."""
    mine = {name: old for name, old in contents(folder).items() if kind_of(name) == kind and old}
    if not mine:
        return False
    name = draw.choice([*mine])
    if damage in EDITS:
        new = EDITS[damage](draw, mine[name])
    else:
        others = contents(victim[damage])
        alike = [content for other, content in others.items() if kind_of(other) == kind]
        new = others.get(name, draw.choice(alike or [mine[name]]))
    (folder / name).unlink()
    if new is not None:
        (folder / name).write_bytes(new)
    return new != mine[name]


def rounds_of(folder: Path) -> list[Any]:
    """Return the rounds of a run as reports and uploads read them, without times."""
    rounds = RunFolder(folder).read().rounds
    return [replace(done, seconds=0.0, client_seconds=None) for done in rounds]


def judge(victim: Victim, folder: Path) -> tuple[str, str]:
    """Read and resume a damaged folder; return the outcome and the defect, "" for none."""
    verb = "read"
    try:
        RunFolder(folder).read_matrices()
        rounds = rounds_of(folder)  # the last may be missing, as after a kill
        if all(rounds != rounds_of(whole)[: len(rounds)] for whole in victim.values()):
            return "", "read with other numbers"
    except UserError as error:
        verb = "not read"
        if "\n" in str(error):
            return "", f"read: more than one line: {error}"
    before, errors = contents(folder), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = run_main(["--resume", str(folder), *SERIAL])
    if code == 0:
        return f"{verb}, same numbers", difference(folder, victim[END])
    lines = errors.getvalue().splitlines()
    if code != 2 or len(lines) != 1 or not lines[0].startswith("error: "):
        return "", f"exit code {code}: {errors.getvalue()[-300:]}"
    return f"{verb}, refused", "" if contents(folder) == before else f"folder changed: {lines[0]}"


def run(count: int, seed: int, folder: Path) -> Tally:
    """Damage `count` files; return the outcomes by kind of file and damage."""
    victims, tally, damaged = make_victims(folder / "runs"), Tally(), folder / "damaged"
    kinds = sorted({kind_of(name) for victim in victims for name in contents(victim[RUN])})
    pairs = [*itertools.product(kinds, (*EDITS, OLDER, STRANGER))]
    random.Random(seed).shuffle(pairs)
    for attempt, (kind, damage) in enumerate(itertools.cycle(pairs)):
        if tally.count == count:
            break
        draw = random.Random(f"{seed}/{attempt}")
        victim = draw.choice(victims)
        shutil.copytree(victim[RUN], damaged)
        if do_damage(draw, victim, damaged, kind, damage):
            outcome, wrong = judge(victim, damaged)
            tally.add([f"{kind} {damage}"], outcome, wrong and f"attempt {attempt}: {wrong}")
        shutil.rmtree(damaged)
    return tally
