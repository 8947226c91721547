"""What travels between clients and server, how big it is, and what happens to it on the wire.

A payload declares its fields, each of one kind. One gate checks, counts and transforms every
payload; a method's author does nothing for it.

Paper: the quantiser is FedTSP's (arXiv:2503.13543, supplementary G).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from fedray.errors import FedrayError
from fedray.streams import Streams

Kind: TypeAlias = Literal[
    "weights", "prototypes", "logits", "text_embeddings", "prompts", "images", "statistics"
]
Direction: TypeAlias = Literal["up", "down"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCALE_BYTES = 4  # a quantised vector travels with one float32 scale


def travels(kind: Kind, shape: str = "") -> Any:
    """Declare a payload field.

    Args:
        kind: what is counted: "weights", "prototypes", ...
        shape: axis names, for example "C d". An axis that the setting knows (C classes, d feature
            width) must have that size; any other axis must agree within the payload. "" is a
            plain number or a mapping of named tensors of any shape.
    """
    return dataclasses.field(metadata={"kind": kind, "axes": tuple(shape.split())})


@dataclass(frozen=True)
class Payload:
    """Base of everything that travels; subclasses are frozen dataclasses of `travels` fields.

    A field is a tensor, a mapping of named tensors, or a plain number. Receivers must not change
    the tensors in place: one download is handed to many clients.
    """

    types: ClassVar[dict[str, type[Payload]]] = {}
    """Every kind of payload, by its full name; two methods may use one short name."""

    def __init_subclass__(cls) -> None:
        Payload.types[cls.full_name()] = cls

    @classmethod
    def full_name(cls) -> str:
        """The class's name with its module's."""
        return f"{cls.__module__}.{cls.__qualname__}"

    def tensors(self) -> Iterator[tuple[str, Kind, tuple[str, ...], Tensor]]:
        """Yield (place, kind, axis names, tensor) of everything that is a tensor."""
        for name, kind, axes in _declared(type(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                yield name, kind, axes, value
            elif isinstance(value, Mapping):
                for key, tensor in value.items():
                    yield f"{name}.{key}", kind, (), tensor

    def numbers(self) -> Iterator[tuple[str, Kind, float]]:
        """Yield (place, kind, value) of every plain number."""
        for name, kind, _ in _declared(type(self)):
            value = getattr(self, name)
            if isinstance(value, int | float):
                yield name, kind, float(value)

    def map(self, function: Any) -> Payload:
        """A payload of the same type with `function(kind, tensor)` applied to every tensor."""
        changed: dict[str, Any] = {}
        for name, kind, _ in _declared(type(self)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                changed[name] = function(kind, value)
            elif isinstance(value, Mapping):
                changed[name] = {key: function(kind, item) for key, item in value.items()}
        return dataclasses.replace(self, **changed)


def _declared(payload: type[Payload]) -> tuple[tuple[str, Kind, tuple[str, ...]], ...]:
    """Name, kind and axes of each field that travels; asked once per class."""
    if payload not in _DECLARED:
        _DECLARED[payload] = tuple(
            (field.name, field.metadata["kind"], field.metadata["axes"])
            for field in dataclasses.fields(payload)
        )
    return _DECLARED[payload]


_DECLARED: dict[type[Payload], tuple[tuple[str, Kind, tuple[str, ...]], ...]] = {}


@dataclass(frozen=True)
class Traffic:
    """Parameters and bytes of one or many payloads in one direction, by kind."""

    params: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __add__(self, other: Traffic) -> Traffic:
        def add(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
            return {kind: a.get(kind, 0) + b.get(kind, 0) for kind in sorted({*a, *b})}

        return Traffic(add(self.params, other.params), add(self.bytes, other.bytes))

    @property
    def total_params(self) -> int:
        """Parameters of all kinds."""
        return sum(self.params.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all kinds."""
        return sum(self.bytes.values())


class BadPayload(FedrayError):
    """A payload with a wrong shape or a number that is not finite."""


@dataclass(frozen=True)
class Gate:
    """The one place that every payload passes.

    Args:
        axes: known axis sizes, {"C": number of classes, "d": feature width}.
        streams: source of the noise.
        up_bits: bits per number of uploads; 32 leaves them alone.
        down_bits: bits per number of downloads.
        clip_norm: L2 bound of each uploaded vector, or None.
        noise_multiplier: sigma; noise of deviation sigma * clip_norm is added to uploads.
    """

    axes: Mapping[str, int]
    streams: Streams
    up_bits: int = 32
    down_bits: int = 32
    clip_norm: float | None = None
    noise_multiplier: float = 0.0

    def down(self, payload: Payload) -> tuple[Payload, Traffic]:
        """Check, transform and count one download; the result shares no memory with its source.

        Raises:
            BadPayload: for a wrong shape or a value that is not finite.
        """
        return self._pass(payload, self.down_bits), self._count(payload, self.down_bits)

    def up(self, payload: Payload, *, round_: int, client: int) -> tuple[Payload, Traffic]:
        """Check, clip, noise, quantise and count one upload; shares no memory with its source.

        Raises:
            BadPayload: for a wrong shape or a value that is not finite.
        """
        if self.clip_norm is not None:
            self._check(payload)
            noise = self.streams.torch("wire_noise", round_=round_, client=client)
            payload = payload.map(lambda kind, tensor: self._privatise(kind, tensor, noise))
        return self._pass(payload, self.up_bits), self._count(payload, self.up_bits)

    def _privatise(self, kind: Kind, tensor: Tensor, noise: torch.Generator) -> Tensor:
        if not _is_vectors(kind, tensor):
            return tensor
        assert self.clip_norm is not None
        clipped = clip_vectors(tensor.detach().cpu(), self.clip_norm)
        if self.noise_multiplier == 0:
            return clipped
        draw = torch.randn(tensor.shape, generator=noise, dtype=tensor.dtype)
        return clipped + self.noise_multiplier * self.clip_norm * draw

    def _pass(self, payload: Payload, bits: int) -> Payload:
        self._check(payload)

        def carry(kind: Kind, tensor: Tensor) -> Tensor:
            tensor = tensor.detach()
            if bits < 32 and _is_vectors(kind, tensor):
                return quantise(tensor.cpu(), bits)
            return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)

        return payload.map(carry)

    def _check(self, payload: Payload) -> None:
        sizes = dict(self.axes)
        name = type(payload).__name__
        for place, _, axes, tensor in payload.tensors():
            if axes and tensor.dim() != len(axes):
                raise BadPayload(
                    f"{name}.{place} has shape {list(tensor.shape)}, expected [{', '.join(axes)}]"
                )
            for axis, size in zip(axes, tensor.shape, strict=False):
                if sizes.setdefault(axis, size) != size:
                    raise BadPayload(
                        f"{name}.{place} has shape {list(tensor.shape)}, "
                        f"expected {axis} = {sizes[axis]}"
                    )
            if not _is_finite(tensor):
                raise BadPayload(f"{name}.{place} holds a NaN or an infinity")
        for place, _, value in payload.numbers():
            if not math.isfinite(value):
                raise BadPayload(f"{name}.{place} is {value}")

    def _count(self, payload: Payload, bits: int) -> Traffic:
        params: dict[str, int] = {}
        size: dict[str, int] = {}
        for _, kind, _, tensor in payload.tensors():
            params[kind] = params.get(kind, 0) + tensor.numel()
            size[kind] = size.get(kind, 0) + wire_bytes(kind, tensor, bits)
        for _, kind, _ in payload.numbers():
            params[kind] = params.get(kind, 0) + 1
            size[kind] = size.get(kind, 0) + 4
        return Traffic(params, size)


def _is_finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite.

    A finite sum proves it in one pass, 30 times faster than asking each; a sum that is not finite
    may have overflowed, so then each is asked.
    """
    if not tensor.is_floating_point() or math.isfinite(float(tensor.detach().sum())):
        return True
    return bool(torch.isfinite(tensor).all())


def _is_vectors(kind: Kind, tensor: Tensor) -> bool:
    """Whether codecs and privacy apply: real numbers that are neither pixels nor statistics."""
    exempt = kind in ("images", "statistics")
    return tensor.is_floating_point() and not exempt and tensor.numel() > 0


def _rows(tensor: Tensor) -> Tensor:
    """A view as vectors [rows, width]: matrices by row, everything else as one vector."""
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() == 2 else tensor.reshape(1, -1)


def wire_bytes(kind: Kind, tensor: Tensor, bits: int) -> int:
    """Bytes of one tensor on the wire: numbers at `bits` bits, plus a scale per vector."""
    if bits >= 32 or not _is_vectors(kind, tensor):
        return tensor.numel() * tensor.element_size()
    return math.ceil(tensor.numel() * bits / 8) + SCALE_BYTES * len(_rows(tensor))


def quantise(tensor: Tensor, bits: int) -> Tensor:
    """Quantise to b bits and back, symmetric and per vector (FedTSP supplementary G).

    With a = max|v|, q = 2^(b-1) - 1 and s = a/q: v^ = clamp(round(v/s), -q, q) * s.

    Args:
        tensor: any shape; a matrix is quantised row by row, else as one vector.
        bits: b, at least 2 (b = 2 keeps the sign and the largest entries).

    Returns:
        The dequantised values, same shape and type; |v^ - v| <= s/2.
    """
    if bits < 2:
        raise ValueError(f"bits={bits}: at least 2 bits are needed")
    levels = 2 ** (bits - 1) - 1
    rows = _rows(tensor).double()
    step = rows.abs().amax(dim=1, keepdim=True) / levels
    safe = torch.where(step > 0, step, torch.ones_like(step))
    codes = torch.round(rows / safe).clamp(-levels, levels)
    values: Tensor = codes * step
    return values.to(tensor.dtype).reshape(tensor.shape)


def clip_vectors(tensor: Tensor, norm: float) -> Tensor:
    """Scale every vector down to an L2 norm of at most `norm`; a matrix row by row."""
    rows = _rows(tensor)
    length = rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    clipped: Tensor = rows * (norm / length).clamp(max=1.0)
    return clipped.reshape(tensor.shape)
