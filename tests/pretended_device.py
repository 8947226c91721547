"""A pretended accelerator, for finding methods that forget `.to(device)` on a machine without one.

PyTorch lets Python register a backend for a new device type. A tensor on "pretended" holds a CPU
tensor; every operation runs on the CPU and gives the same bits. As on CUDA, an operation fails if
its operands are on two devices, except copies, CPU numbers (tensors without dimensions) in
elementwise operations, and indices; a CPU generator cannot draw on the device. As on Apple's
devices, there is no float64. `torch.utils.backend_registration` is private, so pyproject.toml
bounds torch's version.

The device counts in `COUNTS` what a GPU would have to do:

    operators         calls that compute, without views, allocations and copies between devices
    copies            tensors that move from the CPU to the device
    synchronisations  results that the CPU waits for: tensors that move to the CPU, item(),
                      tolist(), nonzero(), unique(), boolean masks as indices

A count is not a time. CUDA's optimisers step all tensors in a few operators, this device steps one
tensor at a time. Waits inside an operator, such as that of an inverse for its error code, are not
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration as private

NAME = "pretended"
aten = torch.ops.aten
MISSING = (torch.float64, torch.complex128)
COPIES = (aten.copy_.default, aten._to_copy.default)
INDEXED = (
    *(aten.index.Tensor, aten._unsafe_index.Tensor),
    *(aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default),
)
VIEW = aten._unsafe_view.default
WAITING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
COUNTS: Counter[str] = Counter()
"""Operators, copies and synchronisations of this process so far."""


class MixedDevicesError(RuntimeError):
    """An operation whose operands, or whose generator, are on different devices."""


class Pretended(Tensor):
    """A tensor on the pretended device; `held` is the CPU tensor with its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        """Wrap a CPU tensor."""
        if held.dtype in MISSING:
            raise TypeError(
                f"{NAME}:0 does not support {held.dtype}, like Apple's devices; use float32"
            )
        tensor: Pretended = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.held = held
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, other: Pretended) -> None:
        """Share the other's memory, as on any device."""
        Tensor.data.__set__(self, other)
        self.held = other.held

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pretended({self.held!r})"

    def tolist(self) -> Any:
        """Return the values as nested lists."""
        COUNTS["synchronisations"] += 1
        return self.held.tolist()


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU tensors inside its operands."""
    outputs = [
        kwargs[name] if name in kwargs else args[position] for position, name in _writes(func)
    ]
    check_operands(func, args, kwargs, outputs)
    stays = "device" not in kwargs or torch.device(kwargs["device"] or NAME).type == NAME
    COUNTS.update(events_of(func, args, kwargs, stays))
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    out = func(*map(_unwrap, args), **{name: _unwrap(value) for name, value in kwargs.items()})
    if out is None or not stays:
        return out
    if any(isinstance(t, Pretended) and t.shape != t.held.shape for t in outputs):
        raise NotImplementedError(f"{func} changes the shape of a tensor on {NAME}:0 in place")
    if outputs:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
    return _wrap(out)


def events_of(func: Any, args: Any, kwargs: dict[str, Any], stays: bool) -> Iterator[str]:
    """Yield the `COUNTS` keys of an operation; `stays` is False if its result is on the CPU."""
    mixed = any(not isinstance(tensor, Pretended) for tensor in _tensors(args))
    if func in COPIES and (mixed or not stays):
        yield "copies" if isinstance(args[0], Pretended) and stays else "synchronisations"
        return
    if not func.is_view and func is not VIEW and "empty" not in func._schema.name:
        yield "operators"
    if func in INDEXED:
        if mixed:
            yield "copies"
        if any(index.dtype in (torch.bool, torch.uint8) for index in _tensors((args[1],))):
            yield "synchronisations"
    elif any(tag in func.tags for tag in WAITING) and kwargs.get("output_size") is None:
        yield "synchronisations"


def check_operands(func: Any, args: Any, kwargs: dict[str, Any], outputs: list[Any]) -> None:
    """Raise a `MixedDevicesError` for operands that CUDA would refuse."""
    if any(isinstance(value, torch.Generator) for value in kwargs.values()):
        raise MixedDevicesError(f"{func} draws on {NAME}:0 with a CPU generator")
    if func in COPIES:
        return
    if func in INDEXED and isinstance(args[0], Pretended):
        args = (args[0], *args[2:])
    on_cpu = [t for t in _tensors((args, *kwargs.values())) if not isinstance(t, Pretended)]
    if not on_cpu:
        return
    takes_numbers = torch.Tag.pointwise in func.tags or func in NUMBERS
    output_ids = {id(tensor) for tensor in outputs}
    if any(t.dim() or not takes_numbers or id(t) in output_ids for t in on_cpu):
        shapes = [list(tensor.shape) for tensor in on_cpu]
        raise MixedDevicesError(
            f"{func} got tensors on {NAME}:0 and on the CPU ({shapes}); move them with .to(device)"
        )


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _unwrap(value: Any) -> Any:
    if isinstance(value, Pretended):
        return value.held
    return type(value)(map(_unwrap, value)) if type(value) in (list, tuple) else value


def _wrap(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Pretended(value)
    return type(value)(map(_wrap, value)) if type(value) in (list, tuple) else value


NUMBERS = (
    *(aten.fill_.Tensor, aten.fill.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor),
    *INDEXED,
)
"""Operations that accept CPU numbers though they are not elementwise."""

MAKING = (
    *("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "logspace"),
    *("randperm", "randperm.generator", "tril_indices", "triu_indices"),
)
"""Operations that create a tensor; their default kernels would resize an `out=` tensor."""


@cache
def _writes(func: Any) -> list[tuple[int, str]]:
    """Return the position and name of each operand that an operation writes to and returns."""
    arguments = enumerate(func._schema.arguments) if func._schema.is_mutable else ()
    return [(i, a.name) for i, a in arguments if a.alias_info and a.alias_info.is_write]


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(target, Pretended) != isinstance(source, Pretended):
        COUNTS["copies" if isinstance(target, Pretended) else "synchronisations"] += 1
    into, numbers = (t.held if isinstance(t, Pretended) else t for t in (target, source))
    into.copy_(numbers)
    return target


def _factory(func: Any) -> Any:
    """Return the kernel of an operation that creates a tensor."""

    def make(*args: Any, device: Any = None, **kwargs: Any) -> Pretended:
        tensor: Pretended = run(func, args, {**kwargs, "device": device or torch.device(NAME)})
        return tensor

    return make


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Pretended:
    return Pretended(
        torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format)
    )


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Pretended:
    return Pretended(torch.empty_strided(size, stride, dtype=dtype))


class _Module(private._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def manual_seed(self, seed: int) -> None:
        """Do nothing: draws use the CPU's generator, which is already seeded."""

    def get_rng_state(self, device: Any = NAME) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = NAME) -> None:
        torch.set_rng_state(state)


@cache
def device() -> torch.device:
    """Return the device; register it at the first call."""
    private._setup_privateuseone_for_python_backend(NAME, _Module())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    for name in MAKING:
        packet, _, overload = name.partition(".")
        func = getattr(getattr(aten, packet), overload or "default")
        library.impl(name, _factory(func), "PrivateUse1")
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _libraries.extend((library, fallback))
    return torch.device(NAME, 0)


_libraries: list[Any] = []
"""Registrations, which torch undoes when they are garbage-collected."""
