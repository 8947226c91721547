"""The one gate that every payload passes: it checks, counts and transforms what travels.

A method's author does nothing for it.

Paper: the quantiser is FedTSP's (arXiv:2503.13543, supplementary G).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedray.core.contract import NotFinitePayload, check_fields
from fedray.core.payload import Kind, Payload
from fedray.core.privacy import Privacy, is_covered
from fedray.records import Traffic

SCALE_BYTES = 4  # a quantised vector travels with one float32 scale
SMALL = 16_384  # numbers; for more of them the sum is faster than the norm


@dataclass(frozen=True)
class Gate:
    """The one place that every payload passes.

    Args:
        axes: known axis sizes, {"C": number of classes, "d": feature width}.
        up_bits: bits per number of uploads; 32 leaves them alone.
        down_bits: bits per number of downloads.
        privacy: clipping and noise of uploads, or None.
    """

    axes: Mapping[str, int]
    up_bits: int = 32
    down_bits: int = 32
    privacy: Privacy | None = None

    def down(self, payload: Payload) -> tuple[Payload, Traffic]:
        """Check, transform and count one download; the result shares no memory with its source.

        Raises:
            BadPayload: for a wrong shape; a NotFinitePayload for a value that is not finite.
        """
        return self._pass(payload, self.down_bits), self._count(payload, self.down_bits)

    def up(
        self, payload: Payload, *, round_: int, client: int, step: str, down: Payload | None
    ) -> tuple[Payload, Traffic]:
        """Check, clip, noise, quantise and count one upload; shares no memory with its source.

        Args:
            payload: what the client uploads.
            round_: the round.
            client: the client's id.
            step: the client step that made it.
            down: what the client was sent for this step; an update is the difference to it.

        Raises:
            BadPayload: for a wrong shape; a NotFinitePayload for a value that is not finite.
        """
        if self.privacy is not None:
            self._check(payload)
            payload = self.privacy.uploaded(payload, down, round_=round_, client=client, step=step)
        return self._pass(payload, self.up_bits), self._count(payload, self.up_bits)

    def together(
        self, uploads: Mapping[int, Payload], *, round_: int, step: str
    ) -> dict[int, Payload]:
        """What the server's step is given of what arrived: as it came, or with central noise."""
        if self.privacy is None:
            return dict(uploads)
        return dict(self.privacy.released(uploads, round_=round_, step=step))

    def _pass(self, payload: Payload, bits: int) -> Payload:
        self._check(payload)

        def carry(kind: Kind, tensor: Tensor) -> Tensor:
            tensor = tensor.detach()
            if bits < 32 and is_covered(kind, tensor):
                return quantise(tensor.cpu(), bits)
            return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)

        return payload.map(carry)

    def _check(self, payload: Payload) -> None:
        check_fields(payload, self.axes)
        named = [(place, value) for place, _, _, value in payload.tensors()]
        if _are_finite([value for _, value in named]):
            return
        for place, value in named:
            if not _is_finite(value):
                raise NotFinitePayload(
                    f"{type(payload).__name__}.{place} holds a NaN or an infinity"
                )

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


@torch.no_grad()
def _are_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether it is sure that no number of any is NaN or infinite.

    The small ones in one call, by their norms: each call costs more than they do.
    """
    small = [t for t in tensors if t.is_floating_point() and _is_small(t)]
    norms = torch._foreach_norm(small) if small else []
    return math.isfinite(sum(map(float, norms))) and all(
        _is_finite(tensor) for tensor in tensors if not _is_small(tensor)
    )


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() <= SMALL and tensor.device.type == "cpu"


def _is_finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite.

    A finite sum proves it in one pass, 30 times faster than asking each; a sum that is not finite
    may have overflowed, so then each is asked.
    """
    if not tensor.is_floating_point() or math.isfinite(float(tensor.detach().sum())):
        return True
    return bool(torch.isfinite(tensor).all())


def _rows(tensor: Tensor) -> Tensor:
    """A view as vectors [rows, width]: matrices by row, everything else as one vector."""
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() == 2 else tensor.reshape(1, -1)


def wire_bytes(kind: Kind, tensor: Tensor, bits: int) -> int:
    """Bytes of one tensor on the wire: numbers at `bits` bits, plus a scale per vector."""
    if bits >= 32 or not is_covered(kind, tensor):
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
