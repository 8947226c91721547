"""The names that fedray gives to files and folders of a run; no other entry is ever removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedray.errors import UserError
from fedray.files import is_temporary

_NAMES = {
    "": r"(config\.yaml|(owner|result|partition|matrices)\.json|(rounds|releases)\.jsonl"
    r"|partition\.png|error\.txt|\.lock|plugins|checkpoints|models)",
    "checkpoints": r"states(\.sqlite(-journal|-wal|-shm)?)?",
    "checkpoints/states": r"[0-9a-f]{8}-\d+(-\d+)?\.safetensors",
    "models": r"best|last",
    "plugins": r".+",
}
"""Regular expressions of the names, by the folder's path in the run's folder."""
_STATES = re.compile(_NAMES["checkpoints/states"])


def own_entries(folder: Path, place: str) -> list[Path]:
    """Return the entries of a folder whose names fedray gives, unfinished ones too."""
    names = re.compile(_NAMES[place])
    entries = folder.iterdir() if folder.is_dir() else ()
    return [path for path in entries if names.fullmatch(path.name) or is_temporary(path.name)]


def check_state_file(name: str) -> str:
    """Return the name of a file of states, after checking that fedray gives such names.

    Raises:
        ValueError: for any other name; a path in an edited database could lead out of the folder.
    """
    if not _STATES.fullmatch(name):
        raise ValueError(f"it names the file {name[:80]!r}, which is no file of states")
    return name


def refuse_links(folder: Path, entries: Iterable[Path] | None = None) -> None:
    """Refuse a folder in which an entry of fedray's is a link that leads out of the folder.

    Args:
        folder: the folder of a run, a sweep or a table; it may be missing.
        entries: the entries to check; by default those that fedray gives to a run.
    """
    home = os.path.realpath(folder)
    for path in _all_own(folder) if entries is None else entries:
        target = os.path.realpath(path)
        if path.is_symlink() and os.path.commonpath([home, target]) != home:
            raise UserError(
                f"{path} is a link to {target}, outside {folder}; fedray would replace and "
                "remove files there. Put what the link leads to in its place, or choose another "
                "folder with --out"
            )


def _all_own(folder: Path) -> Iterator[Path]:
    """Yield every entry of a run's folder that has a name of fedray's, in folders before files."""
    for place in _NAMES:
        yield from own_entries(folder / place, place)
    for parent, folders, files in os.walk(folder / "plugins"):
        yield from (Path(parent) / name for name in (*folders, *files))
