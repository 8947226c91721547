"""The pages of the documentation: their blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import fedray

ROOT = Path(fedray.__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```([^`\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMANDS = ("", "bash")
"""Languages of blocks of commands."""
OURS = re.compile(r"^(?:[A-Z_][A-Z0-9_]*=\S*\s+)*(?:fedray |python -m fedray\b)")


def blocks(page: Path, *languages: str) -> list[str]:
    """The code of a page, block by block, in its order."""
    return [text for of, text in BLOCK.findall(page.read_text("utf-8")) if of in languages]


def commands(page: Path) -> list[str]:
    """Every command of a page, one a line, without comments."""
    found = []
    for block in blocks(page, *COMMANDS):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True, posix=False)
            found += [each.strip() for each in " ".join(words).split("&&") if each.strip()]
    return found


def ours(page: Path) -> list[str]:
    """The commands of this package, also those that a job is submitted with."""
    tails = [command.split(" -- ")[-1] for command in commands(page)]
    return [command for command in tails if OURS.match(command)]


def files(page: Path) -> dict[str, str]:
    """Files that a page shows: blocks whose first line is a comment with their path."""
    texts = blocks(page, "yaml", "python", "json")
    named = [re.match(r"# (\S+\.\w+)\n", text) for text in texts]
    return {found[1]: text for found, text in zip(named, texts, strict=True) if found}


def pages() -> list[Path]:
    """Every page that a person wrote, and the written ones below docs/."""
    top = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")
    folders = (*DOCS.rglob("*.md"), *(ROOT / "clusters").rglob("*.md"), ROOT / "mlflow/README.md")
    found = [*(ROOT / name for name in top), *sorted(folders)]
    return [page for page in found if page.is_file()]
