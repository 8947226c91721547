"""Results on disk: the folders below a folder that hold a run's result.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedray.errors import UserError

REQUIRED = ("config", "rounds", "seed", "identity", "algorithm", "versions")


def find_results(folders: Sequence[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Runs at or below the given folders: each folder and its result, sorted, each once.

    Ray Tune also calls a file result.json, with one line per report; it is passed over.

    Raises:
        UserError: when a given folder is missing or holds no run, or a result cannot be read.
    """
    found: dict[Path, dict[str, Any]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder; pass a run's or sweep's folder")
        below = [path for path in folder.rglob("result.json") if not _is_tunes(path)]
        if not below:
            raise UserError(f"there is no result.json in or below {folder}; pass a run's folder")
        for path in below:
            found[path.parent.resolve()] = _read(path)
    return sorted(found.items())


def _is_tunes(path: Path) -> bool:
    """Whether this is the log of Ray Tune: JSON lines, the first of them about a trial."""
    with path.open("rb") as file:
        first = file.readline()
    if not first.strip():
        return True
    try:
        line = json.loads(first)
    except ValueError:
        return False
    return isinstance(line, dict) and "rounds" not in line and "trial_id" in line


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    missing = [key for key in REQUIRED if not isinstance(result, dict) or key not in result]
    if missing:
        raise UserError(f"{path} is not a run's result: it has no '{missing[0]}'")
    return dict(result)
