"""Read the table of mutants, and plant one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("table.txt")


class Mutant(NamedTuple):
    """A wrong change of one file."""

    name: str
    part: str
    meaning: str
    file: str
    old: str
    new: str


def read_table() -> list[Mutant]:
    """Return all mutants.

    Raises:
        ValueError: if two have one name, or an entry has no place.
    """
    mutants: dict[str, Mutant] = {}
    part = file = ""
    lines = iter(FILE.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("@ "):
            _, part, file = line.split()
        elif line and not line.startswith("#"):
            name, meaning = line.split(": ", 1)
            old, new = (text.replace("\\n", "\n") for text in next(lines).strip().split(" ==> "))
            if name in mutants:
                raise ValueError(f"two mutants are called {name}")
            mutants[name] = Mutant(name, part, meaning, file, old, new)
    return list(mutants.values())


def wrong_place(root: Path, mutant: Mutant) -> str:
    """Return why a mutant cannot be planted in the present code; "" if it can."""
    path = root / mutant.file
    if not path.is_file():
        return f"{mutant.file} does not exist"
    text = path.read_text(encoding="utf-8")
    if (times := text.count(mutant.old)) != 1:
        return f"{mutant.file} has the old text {times} times"
    try:
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    except SyntaxError as error:
        return f"the new text is no Python: {error}"
    return ""


@contextmanager
def planted(root: Path, mutant: Mutant) -> Iterator[None]:
    """Change a file within the block."""
    path = root / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def first_failure(output: str) -> str:
    """Return the first failing test that pytest names, or the last line of any output."""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    lines = output.strip().splitlines()
    return found[1] if found else (lines[-1][:150] if lines else "")
