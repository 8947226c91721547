"""Read JSON: fedray's own files, most with a checksum, and files of users, validated as a type."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.base.errors import UserError, one_line, shown
from fedray.storage.files import read_regular, read_text

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

CHECKSUM = "checksum"


def sealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with a checksum of its content as its last key."""
    content = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return {**tree, CHECKSUM: hashlib.sha256(content.encode()).hexdigest()}


def unsealed(tree: Any) -> dict[str, Any]:
    """Return the tree without its checksum; raise ValueError if the checksum does not fit."""
    content = {key: tree[key] for key in tree if key != CHECKSUM} if isinstance(tree, dict) else {}
    if sealed(content) != tree:
        raise ValueError("its content does not fit its checksum; it was damaged or edited")
    return content


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError also for repeated keys and deep nesting."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, *, is_sealed: bool = False) -> Any:
    """Return a JSON file's content, without a checksum; raise UserError if it is damaged."""
    try:
        tree = parse_json(read_regular(path))
        return unsealed(tree) if is_sealed else tree
    except FileNotFoundError:
        raise UserError(f"{path} is missing; restore it from a copy") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None


def read_typed(path: Path, kind: Any, what: str, expected: str, most: int = 1 << 28) -> Any:
    """Read a JSON file of a user and validate its content as a type.

    Args:
        path: the file.
        kind: any type that pydantic can validate: list[str], a model, a union.
        what: the beginning of an error message.
        expected: the expected content, as the end of an error message.
        most: maximal number of bytes; a larger file is refused.

    Raises:
        UserError: if the file is unreadable, is not JSON, or holds something else.
    """
    return parse_typed(read_text(path, what, most), kind, f"{what} {path}", expected)


def parse_typed(text: str | bytes, kind: Any, where: str, expected: str) -> Any:
    """Parse JSON text and validate it as a type; `kind` and `expected` as in `read_typed`."""
    from pydantic import TypeAdapter, ValidationError

    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        content = parse_json(text)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(places_of(content, first))
        reason = first["msg"].removeprefix("Value error, ")
        found = f"{reason[0].lower()}{reason[1:]}, found {shown(first['input'])}"
        raise UserError(f"{where}: {place}{': ' if place else ''}{found}; {expected}") from None
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON: {one_line(error)}; {expected}") from None


def places_of(content: Any, error: ErrorDetails) -> Iterator[str]:
    """Yield the keys and positions that lead to a mistake, without pydantic's type names."""
    for part in error["loc"]:
        with suppress(LookupError, TypeError):
            content = content[part]
            yield str(part)
    if error["type"] == "missing":
        yield str(error["loc"][-1])


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} occurs twice")
    return content
