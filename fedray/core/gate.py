"""The gate that checks, transforms and counts every payload.

Paper: the quantiser is FedTSP's (arXiv:2503.13543, supplementary G).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedray.base.trees import ALIGNMENT, aligned, moved_to
from fedray.core.payload import Call, Kind, NotFinitePayload, Payload
from fedray.core.privacy import Privacy, is_covered
from fedray.storage.run import Traffic

SCALE_BYTES = 4  # a quantised vector has one float32 scale


@dataclass(frozen=True)
class Gate:
    """The gate of one experiment.

    Args:
        axes: sizes of the axes that the setting fixes: {"C": classes, "d": feature width, ...}.
        up_bits: bits per number of an upload; 32 does not quantise.
        privacy: clipping and noise of uploads, or None.
        statistics: names of the models' buffers, which count as statistics.
    """

    axes: Mapping[str, int]
    up_bits: int = 32
    privacy: Privacy | None = None
    statistics: Collection[str] = ()
    _sizes: dict[object, Traffic] = field(default_factory=dict, init=False, compare=False)

    def down(self, payload: Payload) -> tuple[Payload, Traffic]:
        """Check and count a download, which clients only read.

        Raises:
            BadPayload: if the payload does not fit its declaration, or is not finite.
        """
        size = self._size(payload, 32)
        return _finite_on_cpu([payload])[0], size

    def up(self, payload: Payload, call: Call) -> tuple[Payload, Traffic]:
        """Check, clip, noise, quantise and count an upload, as `up_together` does."""
        return self.up_together([payload], [call])[0]

    def up_together(
        self, payloads: Sequence[Payload], calls: Sequence[Call]
    ) -> list[tuple[Payload, Traffic]]:
        """Check, clip, noise, quantise and count the uploads that these calls returned.

        Raises:
            BadPayload: if an upload does not fit its declaration, or is not finite, without saying
                whose it is.
        """
        sizes = [self._size(payload, self.up_bits) for payload in payloads]
        payloads = _finite_on_cpu(payloads)
        if self.privacy is not None or self.up_bits < 32:
            payloads = [*map(self._transformed, payloads, calls)]
        return [*zip(payloads, sizes, strict=True)]

    def _size(self, payload: Payload, bits: int) -> Traffic:
        """Return the size of a payload; check and count each form once."""
        form = payload.form(), bits
        if form not in self._sizes:
            payload.check_fields(self.axes)
            self._sizes[form] = _count_traffic(payload.items(self.statistics), bits)
        return self._sizes[form]

    def _transformed(self, payload: Payload, call: Call) -> Payload:
        """Return an upload clipped, noised and quantised."""
        if self.privacy is not None:
            payload = self.privacy.protect(payload, call)
        if self.up_bits >= 32:
            return payload

        def quantised(kind: Kind, tensor: Tensor) -> Tensor:
            return quantise(tensor, self.up_bits) if is_covered(kind, tensor) else tensor

        return payload.map(quantised, self.statistics)


def _finite_on_cpu(payloads: Sequence[Payload]) -> Sequence[Payload]:
    """Return payloads on the CPU, contiguous, aligned, and without gradient.

    Raises:
        NotFinitePayload: if a tensor holds a NaN or an infinity.
    """
    blocks = [block for payload in payloads for block in payload.blocks()]
    plain = [
        b.is_cpu and not b.requires_grad and b.is_contiguous() and b.data_ptr() % ALIGNMENT == 0
        for b in blocks
    ]
    if not all(plain):
        moved = iter(moved_to(blocks, torch.device("cpu")))
        payloads = [payload.copied(lambda _: aligned(next(moved))) for payload in payloads]
        blocks = [block for payload in payloads for block in payload.blocks()]
    # if their sum is finite, so are all numbers; that is 30 times faster than testing each number
    sums = [b.sum().item() for b in blocks if b.dtype.is_floating_point or b.dtype.is_complex]
    sums += [vars(payload)[name] for payload in payloads for name in payload.fields.floats]
    if all(map(cmath.isfinite, sums)):
        return payloads
    for payload in payloads:
        for place, _, _, value in payload.items():
            if not bool(torch.isfinite(torch.as_tensor(value)).all()):
                where = f"{payload.fields.place}.{place}"
                raise NotFinitePayload(f"{where} holds a NaN or an infinity")
    return payloads


def _count_traffic(items: Iterable[tuple[str, Kind, str, Any]], bits: int) -> Traffic:
    """Count a payload's numbers and bytes by kind; a plain number takes 4 bytes."""
    params: dict[str, float] = {}
    size: dict[str, float] = {}
    for _, kind, _, value in items:
        numbers, occupied = 1, 4
        if isinstance(value, Tensor):
            numbers, occupied = value.numel(), wire_bytes(kind, value, bits)
        params[kind] = params.get(kind, 0) + numbers
        size[kind] = size.get(kind, 0) + occupied
    return Traffic(params, size)


def _rows(tensor: Tensor) -> Tensor:
    """Return a view as vectors [rows, width]: the rows of a matrix, else one vector."""
    return tensor if tensor.dim() == 2 else tensor.reshape(1, -1)


def wire_bytes(kind: Kind, tensor: Tensor, bits: int) -> int:
    """Return the transmitted bytes of a tensor: `bits` bits per number and a scale per vector."""
    if bits >= 32 or not is_covered(kind, tensor):
        return tensor.numel() * tensor.element_size()
    return math.ceil(tensor.numel() * bits / 8) + SCALE_BYTES * len(_rows(tensor))


def quantise(tensor: Tensor, bits: int) -> Tensor:
    """Quantise to b bits and dequantise, symmetrically and per vector (FedTSP supplementary G).

    With a = max|v|, q = 2^(b-1) - 1 and s = a/q: v^ = clamp(round(v/s), -q, q) * s.

    Args:
        tensor: a tensor of any shape; a matrix is quantised row by row, else as one vector.
        bits: b, at least 2 (b = 2 keeps the sign and the largest entries).

    Returns:
        The dequantised values, same shape and type; |v^ - v| <= s/2.
    """
    levels = 2 ** (bits - 1) - 1
    rows = _rows(tensor).double()
    step = rows.abs().amax(dim=1, keepdim=True) / levels
    safe = torch.where(step > 0, step, torch.ones_like(step))
    codes = torch.round(rows / safe).clamp(-levels, levels)
    values: Tensor = codes * step
    return values.to(tensor.dtype).reshape(tensor.shape)
