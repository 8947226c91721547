"""What stands beside states on the disk: a sealed meta.json; payloads as numbers and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from fedray.core import Payload
from fedray.errors import UserError
from fedray.records import parse_json, unsealed
from fedray.states.segments import damaged


def read_sealed(path: Path, expected: int, remedy: str) -> dict[str, Any]:
    """What a file holds that `records.sealed` gave the checksum, and whose writer a `format`.

    Args:
        path: the file; errors name its folder.
        expected: the format.
        remedy: what to do about another one, to end the sentence.

    Raises:
        UserError: when it is missing, damaged or of another format.
    """
    try:
        tree = parse_json(path.read_bytes())
        other = isinstance(tree, dict) and tree.get("format", expected) != expected
        if not other:
            return unsealed(tree)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None
    raise UserError(
        f"{path.parent} has format {tree['format']}, this version reads {expected}; {remedy}"
    )


def taken_apart(payload: Payload) -> tuple[dict[str, Any], dict[str, Any]]:
    """A payload's type and numbers as plain data, and its tensors by field."""
    own = {each.name: getattr(payload, each.name) for each in fields(payload)}
    tensors = {name: value for name, value in own.items() if isinstance(value, Tensor | Mapping)}
    numbers = {name: value for name, value in own.items() if name not in tensors}
    return {"type": payload.full_name(), "numbers": numbers}, tensors


def put_together(facts: Mapping[str, Any], tensors: Mapping[str, Any], where: Path) -> Payload:
    """The payload that `taken_apart` gave these of.

    Raises:
        UserError: when this process has imported no payload of its type.
    """
    kind = Payload.types.get(facts["type"])
    if kind is None:
        raise UserError(
            f"{where} holds a payload of type {facts['type']}, which this version does not know; "
            "read it with the code that wrote it"
        )
    return kind(**facts["numbers"], **tensors)
