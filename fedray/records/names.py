"""Names of fedray's files and folders in a run's folder; other entries are never removed."""

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
    """Return the entries of a folder that have fedray's names, temporary files included."""
    names = re.compile(_NAMES[place])
    entries = folder.iterdir() if folder.is_dir() else ()
    return [path for path in entries if names.fullmatch(path.name) or is_temporary(path.name)]


def check_state_file(name: str) -> str:
    """Return the name of a file of states, if it has the form of fedray's names.

    Raises:
        ValueError: for any other name, because a path in an edited database could lead out of the
            folder.
    """
    if not _STATES.fullmatch(name):
        raise ValueError(f"it names the file {name[:80]!r}, which is no file of states")
    return name


def refuse_links(folder: Path, entries: Iterable[Path] | None = None) -> None:
    """Raise `UserError` if one of fedray's entries in a folder is a link out of the folder.

    Args:
        folder: the folder of a run, sweep or table; may be missing.
        entries: the entries to check; None: those with fedray's names for a run.
    """
    home = os.path.realpath(folder)
    for path in _all_own(folder) if entries is None else entries:
        target = os.path.realpath(path)
        if path.is_symlink() and os.path.commonpath([home, target]) != home:
            raise UserError(
                f"{path} is a link to {target}, outside {folder}; fedray would replace and "
                "remove files there. Replace the link by its target, or choose another folder "
                "with --out"
            )


def _all_own(folder: Path) -> Iterator[Path]:
    """Yield all entries of a run's folder with fedray's names, those of plug-ins included."""
    for place in _NAMES:
        yield from own_entries(folder / place, place)
    for parent, folders, files in os.walk(folder / "plugins"):
        yield from (Path(parent) / name for name in (*folders, *files))
