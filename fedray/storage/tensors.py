"""Nested trees of tensors as safetensors, in files or as bytes.

The metadata contains the tree as JSON: its names in order, and each tensor's name in the file.
Tensors read from a file are memory-mapped: the system loads and drops pages as needed, and writing
to the tensors does not change the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, TensorSpec, safe_open, serialize, serialize_file
from safetensors.torch import load
from torch import Tensor

from fedray.errors import UserError
from fedray.storage.files import file_checksum
from fedray.trees import StateTree, is_tree, leaves

LARGE = 100_000
"""Bytes of tensors from which a tree is stored in a separate file."""
DAMAGE = (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError)
"""Errors raised by reading a damaged file."""
_TREE = "tree"


class TreeFile(NamedTuple):
    """The location of a tree in a file.

    Attributes:
        file: the name of the file.
        checksum: SHA-256 of its content, in hexadecimal digits.
    """

    file: str
    checksum: str


ROW = TreeFile("", "")
"""The place of a small tree, in the SQLite file."""


def tree_bytes(tree: StateTree) -> int:
    """Return the bytes of a tree's tensors."""
    return sum(tensor.nbytes for _, tensor in leaves(tree))


def write_tree(path: Path, tree: StateTree) -> TreeFile:
    """Write a tree to a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    specs = _Specs(tree)
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    serialize_file(specs.tensors, path, specs.metadata)
    path.chmod(mode)  # safetensors restricts the file to its owner
    return TreeFile(path.name, file_checksum(path))


def read_tree(path: Path) -> dict[str, Any]:
    """Read a file that `write_tree` wrote; tensors are memory-mapped.

    Raises:
        UserError: if the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return _nested(json.loads(file.metadata()[_TREE]), file.get_tensor)
    except DAMAGE as error:
        raise damaged(path, error) from None


def tree_to_bytes(tree: StateTree) -> bytes:
    """Return the bytes that `write_tree` would write."""
    specs = _Specs(tree)
    return bytes(serialize(specs.tensors, specs.metadata))


def tree_from_bytes(content: bytes) -> dict[str, Any]:
    """Return the tree of bytes from `tree_to_bytes`; raises the errors in `DAMAGE`."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return _nested(json.loads(header["__metadata__"][_TREE]), load(content).__getitem__)


def damaged(path: Path, error: Exception) -> UserError:
    """Return the error that explains why a file cannot be read, and what to do."""
    where = getattr(error, "filename", None) or path
    if isinstance(error, PermissionError):
        return UserError(
            f"this account may not read {where}; ask its owner for permission, or start a new "
            "run with another --out"
        )
    reason = "it is missing" if isinstance(error, FileNotFoundError) else error
    return UserError(
        f"{where} is damaged ({reason}); restore it from a copy, or start a new run with another "
        "--out"
    )


class _Specs:
    """The arguments of safetensors for a tree; keeps the tensors alive."""

    def __init__(self, tree: StateTree) -> None:
        self.tensors: dict[str, TensorSpec] = {}
        self._alive: list[Tensor] = []
        self.metadata = {_TREE: json.dumps(self._names(tree, ""))}

    def _names(self, branch: StateTree, prefix: str) -> dict[str, Any]:
        return {
            key: self._names(value, f"{prefix}{key}/")
            if is_tree(value)
            else self._add(value, f"{prefix}{key}")
            for key, value in branch.items()
        }

    def _add(self, tensor: Tensor, name: str) -> str:
        while name in self.tensors:  # keys may contain the slash that joins them
            name += "'"
        contiguous = tensor.detach().cpu().contiguous()
        self._alive.append(contiguous)
        self.tensors[name] = TensorSpec(
            dtype=str(contiguous.dtype).removeprefix("torch."),
            shape=contiguous.shape,
            data_ptr=contiguous.data_ptr(),
            data_len=contiguous.nbytes,
        )
        return name


def _nested(names: Mapping[str, Any], get: Callable[[str], Tensor]) -> dict[str, Any]:
    return {
        key: _nested(value, get) if isinstance(value, Mapping) else get(value)
        for key, value in names.items()
    }
