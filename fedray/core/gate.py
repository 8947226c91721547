"""The one gate that every payload passes: it checks, counts and transforms what travels.

A method's author does nothing for it.

Paper: the quantiser is FedTSP's (arXiv:2503.13543, supplementary G).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedray.core.contract import BadPayload, check_fields
from fedray.core.payload import Kind, Payload
from fedray.records import Traffic
from fedray.streams import Streams

SCALE_BYTES = 4  # a quantised vector travels with one float32 scale


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
        check_fields(payload, self.axes)
        for place, _, _, value in payload.tensors():
            if not _is_finite(value):
                raise BadPayload(f"{type(payload).__name__}.{place} holds a NaN or an infinity")

    def _count(self, payload: Payload, bits: int) -> Traffic:
        params: dict[str, float] = {}
        size: dict[str, float] = {}
        for _, kind, _, value in payload.items():
            numbers, occupied = 1, 4
            if isinstance(value, Tensor):
                numbers, occupied = value.numel(), wire_bytes(kind, value, bits)
            params[kind] = params.get(kind, 0) + numbers
            size[kind] = size.get(kind, 0) + occupied
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
