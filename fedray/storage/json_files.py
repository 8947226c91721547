"""JSON files with a checksum, so that damaged and edited files are refused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from fedray.errors import UserError, one_line
from fedray.storage.files import read_regular, remedy_of

CHECKSUM = "checksum"


def checksum(*parts: str) -> str:
    """Return the SHA-256 of the joined texts in hexadecimal digits."""
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def sealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with a checksum of its content."""
    return {**tree, CHECKSUM: checksum(json.dumps(tree, sort_keys=True, separators=(",", ":")))}


def unsealed(tree: Any) -> dict[str, Any]:
    """Return the tree without its checksum; raise ValueError if the checksum does not fit."""
    if not isinstance(tree, dict):
        raise ValueError(f"it holds {type(tree).__name__}, expected a mapping")
    if CHECKSUM not in tree:
        raise ValueError("it has no checksum")
    content = {key: value for key, value in tree.items() if key != CHECKSUM}
    if sealed(content) != tree:
        raise ValueError("its content does not fit its checksum")
    return content


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError also for NaN, infinities and excessive nesting."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return a JSON file's content; raise UserError if it is missing or damaged."""
    try:
        return parse_json(read_regular(path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; restore it from a copy") from None
    except PermissionError as error:
        raise UserError(f"{path} cannot be read; {remedy_of(error)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None


def read_checked(path: Path) -> dict[str, Any]:
    """Return a JSON file's content without its checksum; raise UserError if it was edited."""
    return check(read_json(path), path)


def check(tree: Any, path: Path) -> dict[str, Any]:
    """Return a tree without its checksum; raise UserError about `path` if it does not fit."""
    try:
        return unsealed(tree)
    except ValueError as error:
        raise UserError(
            f"{path} cannot be read: {error}. It was damaged or edited; restore it from a copy"
        ) from None


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        _refuse(digits)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant[:20]} is not a number")
