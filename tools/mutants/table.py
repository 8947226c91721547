"""Read the table of mutants, and plant one."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
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


def nearest_tests(root: Path, mutant: Mutant, tests: Mapping[str, str], most: int) -> list[str]:
    """Return the test files that most often name what a mutant changes, nearest first.

    Args:
        root: the checkout.
        mutant: the mutant.
        tests: the text of every test file, by path.
        most: how many files to return.
    """
    text = (root / mutant.file).read_text(encoding="utf-8")
    line = text[: text.index(mutant.old)].count("\n") + 1
    scopes = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.ClassDef))
    around = {n.name for n in scopes if n.lineno <= line <= (n.end_lineno or 0)}
    module = Path(mutant.file).stem
    weights = dict.fromkeys(re.findall(r"[A-Za-z_]{5,}", mutant.old), 1.0)
    weights |= dict.fromkeys([module, *around, *(name.lstrip("_") for name in around)], 3.0)
    scores = Counter({path: 3.0 for path in tests if f"/test_{module}" in path})
    for word, weight in weights.items():
        named = [path for path, content in tests.items() if re.search(rf"\b{word}\b", content)]
        for path in named if len(word) > 3 else ():
            scores[path] += weight / len(named)
    return [path for path, _ in scores.most_common(most)]


def first_failure(output: str) -> str:
    """Return the first failing test that pytest names, or the last line of any output."""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    lines = output.strip().splitlines()
    return found[1] if found else (lines[-1][:150] if lines else "")
