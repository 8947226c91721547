"""Files of states: trees of tensors by number, as one vector of bytes in a safetensors file.

The file's metadata says what stands where: the distinct forms of the trees (names, types and shapes
in order), and for each number its form and its first byte. Every tensor, or vector of a `Flat`,
begins at a multiple of 64 bytes. Tensors that are read are memory-mapped: the system loads and
drops pages as needed, and writing to the tensors does not change the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedray.errors import UserError
from fedray.flat import Flat, Layout, layout_of
from fedray.trees import ALIGNMENT, StateTree

DAMAGE = (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors raised by reading a damaged file."""
_Parsed: TypeAlias = "dict[str, _Parsed] | Layout | tuple[torch.dtype, tuple[int, ...]]"
"""The form of a tree, a `Flat` or a tensor."""
_NAME, _FLAT = "states", "flat"


class Written(NamedTuple):
    """A file of states that has been written.

    Attributes:
        name: its name.
        size: its bytes.
        sha256: the SHA-256 of its content, in hexadecimal digits.
        keys: the numbers of its trees.
    """

    name: str
    size: int
    sha256: str
    keys: tuple[int, ...]


def write_states(path: Path, trees: Mapping[int, StateTree]) -> Written:
    """Write trees to a new file; the caller flushes it to the disk before a pointer names it.

    Raises:
        OSError: if the disk is full; no file is left.
    """
    forms: dict[str, int] = {}
    places: dict[int, tuple[int, int]] = {}
    blocks: list[Tensor] = []
    end = 0
    for key, tree in trees.items():
        own: list[Tensor] = []
        form = json.dumps(_form(tree, own))
        places[key] = forms.setdefault(form, len(forms)), end
        end += sum(_padded(block.nbytes) for block in own)
        blocks += own
    end = max(end, ALIGNMENT)  # an empty tensor cannot be mapped
    facts = f'{{"forms": [{", ".join(forms)}], "places": {json.dumps(places)}}}'
    data = {"dtype": "U8", "shape": [end], "data_offsets": [0, end]}
    header = json.dumps({"__metadata__": {_NAME: facts}, _NAME: data}).encode()
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as file:
            for part in (len(header).to_bytes(8, "little"), header, *_bytes(blocks, end)):
                digest.update(part)
                file.write(part)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return Written(path.name, 8 + len(header) + end, digest.hexdigest(), tuple(trees))


class StateFile:
    """A file of states, opened for reading.

    Raises:
        UserError: if the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads(file.metadata()[_NAME])
                self._data = file.get_tensor(_NAME)
            self._forms = [_parsed(form) for form in facts["forms"]]
            self._places = {int(key): (int(n), int(at)) for key, (n, at) in facts["places"].items()}
        except DAMAGE as error:
            raise damaged(path, error) from None
        self._sizes = [_size(form) for form in self._forms]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all trees."""
        return int(self._data.nbytes)

    def read(self, key: int) -> dict[str, Any]:
        """Return the tree of a number."""
        form, start = self._places[key]
        tree, _ = self._read(self._forms[form], start)
        assert isinstance(tree, dict)
        return tree

    def size(self, key: int) -> int:
        """Return the bytes of the tree of a number."""
        form, _ = self._places[key]
        return self._sizes[form]

    def _read(self, form: _Parsed, start: int) -> tuple[Any, int]:
        """Return what has a form and begins at a byte, and the first byte after it."""
        if isinstance(form, dict):
            tree = {}
            for name, inner in form.items():
                tree[name], start = self._read(inner, start)
            return tree, start
        vectors = []
        for dtype, shape in form.sizes if isinstance(form, Layout) else [form]:
            vectors.append(self._tensor(dtype, shape, start))
            start += _padded(vectors[-1].nbytes)
        return Flat(form, vectors) if isinstance(form, Layout) else vectors[0], start

    def _tensor(self, dtype: torch.dtype, shape: Any, start: int) -> Tensor:
        shape = shape if isinstance(shape, tuple) else (shape,)
        values = self._data[start : start + prod(shape) * dtype.itemsize]
        return values.view(dtype).view(shape) if values.numel() else torch.empty(shape, dtype=dtype)


def damaged(path: Path, error: Exception) -> UserError:
    """Return the error that explains why a file cannot be read, and what to do."""
    reason = "it is missing" if isinstance(error, FileNotFoundError) else error
    return UserError(
        f"{path} is damaged ({reason}); restore it from a copy, or start a new run with another "
        "--out"
    )


def _form(value: Any, blocks: list[Tensor]) -> Any:
    """Return names, types and shapes as JSON values; add the tensors to `blocks`."""
    if type(value) is Flat and _fits(value):
        blocks += value.vectors
        return [_FLAT, [[name, _name(dtype), shape] for name, dtype, shape in value.layout.forms]]
    if isinstance(value, Tensor):
        blocks.append(value)
        return [_name(value.dtype), [*value.shape]]
    return {name: _form(inner, blocks) for name, inner in value.items()}


def _fits(flat: Flat) -> bool:
    """Return True if vectors have the types and lengths of their layout; converted ones do not."""
    sizes = tuple((vector.dtype, *vector.shape) for vector in flat.vectors)
    return sizes == flat.layout.sizes


def _parsed(form: Any) -> _Parsed:
    """Return the form of a tree, a `Flat` or a tensor, as `_form` made it."""
    if isinstance(form, dict):
        return {name: _parsed(inner) for name, inner in form.items()}
    if form[0] == _FLAT:
        return layout_of(
            tuple((name, _dtype(dtype), tuple(shape)) for name, dtype, shape in form[1])
        )
    return _dtype(form[0]), tuple(form[1])


def _size(form: _Parsed) -> int:
    """Return the bytes of what has a form."""
    if isinstance(form, dict):
        return sum(map(_size, form.values()))
    if isinstance(form, Layout):
        return sum(_padded(length * dtype.itemsize) for dtype, length in form.sizes)
    dtype, shape = form
    return _padded(prod(shape) * dtype.itemsize)


def _bytes(blocks: Sequence[Tensor], end: int) -> Iterator[Any]:
    """Yield the bytes of tensors, each padded to a multiple of 64, up to `end`."""
    for block in blocks:
        values = block.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield values.numpy().data
        yield bytes(_padded(block.nbytes) - block.nbytes)
    yield bytes(end - sum(_padded(block.nbytes) for block in blocks))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no type of tensors")
    return dtype
