"""What takes the import of PyTorch to know, kept by the hash of all that it follows from.

A listing follows from the package's own files and the plug-ins' alone: reading what was listed
before takes milliseconds, listing anew takes seconds. What is kept is made again at any time, when
it is missing, damaged, or of other files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fedray.files import cache_folder, write_json
from fedray.plugins import Plugin, installed_plugin
from fedray.registry import installed_points
from fedray.shipped import PACKAGE


def kept(what: Any, plugins: Iterable[Plugin], make: Callable[[], tuple[Any, bool]]) -> Any:
    """What `make` gives, or gave before of the same files.

    Args:
        what: plain data that says what is asked, and all that it follows from besides code.
        plugins: those that are in use.
        make: gives plain data, and whether it follows from these files alone.

    Raises:
        UserError: when an installed plug-in is not there.
    """
    used = [plugin.key for plugin in plugins]
    words = json.dumps([what, package_hash(), used, _installed()], sort_keys=True)
    path = cache_folder() / "listings" / f"{hashlib.sha256(words.encode()).hexdigest()}.json"
    with suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    found, may_be_kept = make()
    if may_be_kept:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, found)
    return found


@cache
def package_hash() -> str:
    """SHA-256 of the package's Python files."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _installed() -> list[str]:
    """What installed packages register, with the hashes of their files."""
    modules = {point.module for point in installed_points()}
    return [f"{name} {installed_plugin(name).sha256}" for name in sorted(modules)]


def is_portable(value: Any) -> bool:
    """Whether plain data holds no absolute path, which follows from more than files' contents."""
    if isinstance(value, dict):
        return all(map(is_portable, value.values()))
    if isinstance(value, list):
        return all(map(is_portable, value))
    return not (isinstance(value, str) and Path(value).is_absolute())
