"""Names of fedray's files and folders in a run's folder; other entries are never removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedray.errors import UserError
from fedray.storage.files import is_temporary

_NAMES = {
    "": r"(config\.yaml|(owner|result|partition|matrices|tracking)\.json|rounds\.jsonl"
    r"|partition\.png|error\.txt|\.lock|plugins|checkpoints)",
    "checkpoints": r"states(\.sqlite(-journal|-wal|-shm)?)?",
    "checkpoints/states": r"[0-9a-f]{8}-\d+(-\d+)?\.safetensors",
    "plugins": r".+",
}
"""Regular expressions of the names, by the folder's path in the run's folder."""
_FOLDERS = {"checkpoints", "plugins", "states"}
_FILES = re.compile(r".+\.(csv|html|jsonl?|lock|md|png|sqlite|tex|txt|yaml)")
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


def check_entries(folder: Path, entries: Iterable[os.DirEntry[str]] | None = None) -> None:
    """Raise `UserError` unless fedray's entries in a folder are files and folders below it.

    Links out of the folder would publish, replace or remove other files; pipes and devices would
    never end. This costs a fifth of a millisecond, so every reader of a run's folder can call it.

    Args:
        folder: the folder of a run, sweep or table; may be missing.
        entries: the entries to check; None: those with fedray's names for a run.
    """
    for entry in _all_own(folder) if entries is None else entries:
        if entry.is_symlink():
            _check_link(folder, entry.path)
        try:
            is_folder = entry.is_dir()
            is_other = not is_folder and not entry.is_file()
        except OSError:  # a link to itself
            is_folder, is_other = False, True
        if is_other and os.path.lexists(entry.path):
            raise UserError(f"{entry.path} is neither a file nor a folder; remove it")
        if is_folder and _FILES.fullmatch(entry.name):
            raise UserError(f"{entry.path} is a folder, expected a file; remove it")
        if not is_folder and entry.name in _FOLDERS:
            raise UserError(f"{entry.path} is a file, expected a folder; remove it")


def _check_link(folder: Path, path: str) -> None:
    home, target = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath([home, target]) != home:
        raise UserError(
            f"{path} is a link to {target}, outside {folder}; fedray reads, writes and uploads "
            "only what lies in the folder. Remove the link, or replace it by its target if you "
            "know who made it"
        )


def _all_own(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a run's folder with fedray's names, and all below plugins/."""
    for place, pattern in _NAMES.items():
        names = re.compile(pattern)
        for entry in _entries(os.path.join(folder, place)):
            if names.fullmatch(entry.name) or is_temporary(entry.name):
                yield entry
    yield from _below(os.path.join(folder, "plugins"))


def _below(folder: str) -> Iterator[os.DirEntry[str]]:
    for entry in _entries(folder):
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
