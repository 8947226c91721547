"""Where results live, and files that are either there whole or not there at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as JSON, in one step; a NaN is an error, not "NaN".

    Raises:
        ValueError: when a number is not finite.
    """
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def results_home() -> Path:
    """$FEDRAY_RESULTS, or ~/fedray_results; absolute."""
    return Path(os.environ.get("FEDRAY_RESULTS") or Path.home() / "fedray_results").resolve()
