"""Files of states: trees of tensors by number, each as one vector of bytes in a safetensors file.

The file's metadata has the distinct forms of the trees (names, types and shapes in order), and for
each number its form and its bytes. In a vector, every tensor, or vector of a `Flat`, begins at a
multiple of 64 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from fedray.base.errors import UserError
from fedray.base.flat import Flat, Layout, layout_of
from fedray.base.trees import ALIGNMENT, StateTree
from fedray.storage.files import file_checksum

DAMAGE = (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors raised by reading a damaged file."""
_FACTS, _TENSOR = "states", ""
"""The key of the metadata, and the name of a tensor that does not belong to a `Flat`."""


class Written(NamedTuple):
    """A file of states that has been written.

    Attributes:
        name: its name.
        sha256: the SHA-256 of its content, in hexadecimal digits.
        keys: the numbers of its trees.
    """

    name: str
    sha256: str
    keys: tuple[int, ...]


def write_states(path: Path, trees: Mapping[int, StateTree]) -> Written:
    """Write trees to a new file; the caller flushes it to the disk before a pointer names it."""
    forms: dict[str, int] = {}
    places: dict[int, tuple[int, int]] = {}
    vectors: dict[str, NDArray[np.uint8]] = {}
    for key, tree in trees.items():
        parts: list[NDArray[np.uint8]] = []
        form = json.dumps(_form(tree, parts))
        vectors[str(key)] = vector = np.concatenate([*parts, _zeros(0)])
        places[key] = forms.setdefault(form, len(forms)), vector.nbytes
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = f'{{"forms": [{", ".join(forms)}], "places": {json.dumps(places)}}}'
    save_file(vectors, path, {_FACTS: facts})
    return Written(path.name, file_checksum(path), tuple(trees))


class StateFile:
    """A file of states, opened for reading.

    Attributes:
        sizes: the bytes of each tree by its number.

    Raises:
        UserError: if the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
            facts = json.loads(file.metadata()[_FACTS])
            self._file = file
            self._forms = [_parsed(form) for form in facts["forms"]]
            self._form_of = {int(key): form for key, (form, _) in facts["places"].items()}
            self.sizes = {int(key): size for key, (_, size) in facts["places"].items()}
        except DAMAGE as error:
            raise damaged(path, error) from None

    def read(self, key: int) -> dict[str, Any]:
        """Return the tree of a number."""
        content = self._file.get_tensor(str(key)).clone()  # aligned, which the file is not
        tree, _ = _filled(self._forms[self._form_of[key]], content)
        assert isinstance(tree, dict)
        return tree


def damaged(path: Path, error: Exception) -> UserError:
    """Return the error that explains why a file cannot be read, and what to do."""
    reason = "it is missing" if isinstance(error, FileNotFoundError) else error
    return UserError(
        f"{path} is damaged ({reason}); restore it from a copy, or start a new run with another "
        "--out"
    )


def _form(value: Any, parts: list[NDArray[np.uint8]]) -> Any:
    """Return names, types and shapes as JSON values; add the tensors' bytes to `parts`."""
    if isinstance(value, Tensor):
        parts += _bytes(value)
        return [[_TENSOR, _name(value.dtype), [*value.shape]]]
    if type(value) is Flat and [vector.dtype for vector in value.vectors] == [
        dtype for dtype, _ in value.layout.sizes
    ]:  # not one that was converted to other types
        for vector in value.vectors:
            parts += _bytes(vector)
        return [[name, _name(dtype), shape] for name, dtype, shape in value.layout.forms]
    return {name: _form(inner, parts) for name, inner in value.items()}


def _bytes(tensor: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return a tensor's bytes, and as many zeros as make them a multiple of 64."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return content, _zeros(-content.nbytes % ALIGNMENT)


def _zeros(count: int) -> NDArray[np.uint8]:
    return np.zeros(count, np.uint8)


def _parsed(form: Any) -> Any:
    """Return a form as `_form` made it, with a `Layout` for each `Flat` and each other tensor."""
    if isinstance(form, dict):
        return {name: _parsed(inner) for name, inner in form.items()}
    return layout_of(tuple((name, getattr(torch, dtype), (*shape,)) for name, dtype, shape in form))


def _filled(form: Any, content: Tensor) -> tuple[Any, Tensor]:
    """Return what has a form and begins with `content`, and the content after it."""
    if isinstance(form, dict):
        tree = {}
        for name, inner in form.items():
            tree[name], content = _filled(inner, content)
        return tree, content
    assert isinstance(form, Layout)
    vectors = []
    for dtype, length in form.sizes:
        size = length * dtype.itemsize
        vectors.append(content[:size].view(dtype))
        content = content[size:]
    flat = Flat(form, vectors)
    return flat[_TENSOR] if _TENSOR in form.places else flat, content


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
