"""State of server and clients as nested mappings of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = dict[str, Tensor]
StateTree: TypeAlias = Mapping[str, Any]
"""Nested mappings of tensors: `{"model": {"head.weight": ...}, "control": {...}}`."""
ServerState: TypeAlias = StateTree
"""The state of the server, on the CPU."""


@dataclass(frozen=True)
class ClientState:
    """The state of a client between rounds.

    Attributes:
        model: the model's parameters and buffers by name.
        memory: other tensors of the method (control variates, previous weights), nested.
    """

    model: Mapping[str, Tensor]
    memory: StateTree = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if the state has no tensor."""
        return not (self.model or self.memory)

    def with_memory(self, **entries: Any) -> ClientState:
        """Return the state with these entries of the memory in place of those before."""
        return replace(self, memory={**self.memory, **entries})


@dataclass(frozen=True)
class Snapshot:
    """The state of a federation after a round, without the clients' states.

    Attributes:
        round: the last finished round.
        server: the method's server state.
    """

    round: int
    server: StateTree


def map_tensors(function: Callable[[Tensor], Any], tree: StateTree) -> dict[str, Any]:
    """Return the tree with `function` applied to every tensor, in the same order."""
    return {
        name: map_tensors(function, value) if is_tree(value) else function(value)
        for name, value in tree.items()
    }


def moved_to(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors on a device, contiguous and without gradient.

    What lies on another device is copied at once for each dtype: for an accelerator, a copy of a
    small tensor takes as long as that of a million numbers.
    """
    results = [tensor.detach().contiguous() for tensor in tensors]
    away: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, tensor in enumerate(results):
        if tensor.device != device:
            away.setdefault((tensor.device, tensor.dtype), []).append(position)
    for positions in away.values():
        packed = torch.cat([results[n].flatten() for n in positions]).to(device)
        parts = torch.split(packed, [results[n].numel() for n in positions])
        for n, part in zip(positions, parts, strict=True):
            results[n] = part.view(results[n].shape)
    return results


ALIGNMENT = 64
"""Bytes at whose multiples tensors begin on a CPU: products with a batch of one change their last
bits with the offset."""


def is_aligned(tensor: Tensor) -> bool:
    """Return True if a tensor begins at a multiple of `ALIGNMENT`, or lies on an accelerator."""
    return not tensor.is_cpu or tensor.data_ptr() % ALIGNMENT == 0


def aligned(tensor: Tensor) -> Tensor:
    """Return a tensor that begins at a multiple of `ALIGNMENT`: a copy if this one does not."""
    return tensor if is_aligned(tensor) else tensor.clone()


def leaves(tree: StateTree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of everything that is not a mapping, in the tree's order."""
    for name, value in tree.items():
        if is_tree(value):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def is_tree(value: Any) -> bool:
    """Return True if `value` is a mapping."""
    # `isinstance` with an abstract class is slow
    return not isinstance(value, Tensor) and isinstance(value, dict | Mapping)


def storage_of(tensor: Tensor) -> int:
    """Return the address of a CPU tensor's storage, which its views share."""
    return tensor.untyped_storage().data_ptr()


def describe_tensor(tensor: Tensor) -> str:
    """Return a tensor's dtype and shape as text, for example "float32 [10, 16]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def difference(found: StateTree, expected: StateTree) -> str:
    """Return which tensor has another name, dtype or shape, as a sentence; "" if none has."""
    forms = [
        {".".join(path): describe_tensor(tensor) for path, tensor in leaves(tree)}
        for tree in (found, expected)
    ]
    for name, _ in sorted(forms[0].items() ^ forms[1].items()):
        own, other = (form.get(name, "none") for form in forms)
        return f"{name} is {own}, expected {other}"
    return ""


def make_contiguous(tree: StateTree) -> StateTree:
    """Return the tree with contiguous tensors; the same tree if all are.

    Tensors read from a checkpoint are contiguous, and a different layout may change rounding.

    Raises:
        TypeError: if the tree holds anything but tensors and mappings.
    """
    is_contiguous = True
    for path, value in leaves(tree):
        if not all(isinstance(name, str) for name in path):
            raise TypeError(f"the state has a key {path[-1]!r}, expected a str")
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the state's '{'.'.join(map(str, path))}' is of type {type(value).__name__}, "
                "expected a tensor or a mapping of tensors"
            )
        is_contiguous = is_contiguous and value.is_contiguous()
    return tree if is_contiguous else map_tensors(lambda tensor: tensor.contiguous(), tree)
