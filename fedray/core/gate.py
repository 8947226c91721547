"""The gate that checks, transforms and counts every payload.

Paper: the quantiser is FedTSP's (arXiv:2503.13543, supplementary G).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedray.core.payload import (
    BadPayload,
    Call,
    Kind,
    NotFinitePayload,
    Payload,
    PayloadTypes,
    Placed,
)
from fedray.core.privacy import Privacy, is_covered
from fedray.storage.run import Traffic
from fedray.trees import ALIGNMENT, aligned

SCALE_BYTES = 4  # a quantised vector has one float32 scale


@dataclass(frozen=True)
class Gate:
    """The gate of one experiment.

    Args:
        axes: sizes of the axes that the setting fixes: {"C": classes, "d": feature width, ...}.
        uploads: the upload types that the method declares; None allows any.
        downloads: the download types that the method declares; None allows any.
        up_bits: bits per number of an upload; 32 does not quantise.
        privacy: clipping and noise of uploads, or None.
        statistics: names of the models' buffers, which count as statistics.
    """

    axes: Mapping[str, int]
    uploads: PayloadTypes | None = None
    downloads: PayloadTypes | None = None
    up_bits: int = 32
    privacy: Privacy | None = None
    statistics: Collection[str] = ()

    def down(self, payload: Payload) -> tuple[Payload, Traffic]:
        """Check and count a download, which clients only read.

        Raises:
            BadPayload: if the payload does not fit its declaration, or is not finite.
        """
        self._check_type(payload, "downloads")
        payload.check_fields(self.axes)
        payload, blocks = _on_cpu(payload)
        if not _are_finite(blocks):
            _check_finite(payload)
        return payload, _count_traffic([*payload.items(self.statistics)])

    def up(self, payload: Payload, call: Call) -> tuple[Payload, Traffic]:
        """Check, clip, noise, quantise and count an upload.

        Args:
            payload: the upload of the client.
            call: the client's call that returned the upload.

        Raises:
            BadPayload: if the payload does not fit its declaration or the call, or is not finite.
        """
        ((payload, traffic),) = self.up_together([payload], [call])
        return payload, traffic

    def up_together(
        self, payloads: Sequence[Payload], calls: Sequence[Call]
    ) -> list[tuple[Payload, Traffic]]:
        """Return `up` of several uploads; those of one form are checked and counted together.

        Raises:
            BadPayload: if one of them is wrong, without saying whose.
        """
        forms: dict[object, Traffic] = {}
        passed: list[tuple[Payload, Traffic]] = []
        blocks: list[Tensor] = []
        down, sent = object(), object()  # the last download, and its form
        for payload, call in zip(payloads, calls, strict=True):
            if type(payload) not in (self.uploads or ()):
                self._check_type(payload, "uploads")
            if call.down is not down:
                down, sent = call.down, call.down and call.down.form()
            form = payload.form(), sent
            if form not in forms:
                payload.check_fields(self.axes)
                _check_like(payload, call.down)
                forms[form] = _count_traffic([*payload.items(self.statistics)], self.up_bits)
            payload.check_numbers()
            placed, own = _on_cpu(payload)
            placed.check(call)
            passed.append((placed, forms[form]))
            blocks += own
        if not _are_finite(blocks):
            for payload, _ in passed:
                _check_finite(payload)
        if self.privacy is None and self.up_bits >= 32:
            return passed
        pairs = zip(passed, calls, strict=True)
        return [(self._transformed(payload, call), size) for (payload, size), call in pairs]

    def _transformed(self, payload: Payload, call: Call) -> Payload:
        """Return an upload clipped, noised and quantised."""
        if self.privacy is not None:
            client, step = call.client, call.step
            payload = self.privacy.protect(
                payload, call.down, round_=client.round, client=client.id, step=step
            )
        if self.up_bits >= 32:
            return payload

        def quantised(kind: Kind, tensor: Tensor) -> Tensor:
            return quantise(tensor, self.up_bits) if is_covered(kind, tensor) else tensor

        return payload.map(quantised, self.statistics)

    def _check_type(self, payload: Any, direction: Literal["uploads", "downloads"]) -> None:
        types, kind = getattr(self, direction), type(payload)
        if not isinstance(payload, Payload) or (types is not None and kind not in types):
            expected = " or ".join(f"a {allowed.__name__}" for allowed in types or (Payload,))
            raise BadPayload(
                f"a {kind.__name__} cannot travel, expected {expected} (`{direction}` of the "
                "method)"
            )


def _check_like(payload: Payload, down: Any) -> None:
    """Check that fields declared alike in the download have equal names, shapes and dtypes.

    Fields are declared alike if their names, types and axes agree. Plain numbers are not compared.
    """
    sent = down.declared() if isinstance(down, Payload) else ()
    forms = {(field.name, field.form, field.axes) for field in sent}
    for field in payload.declared():
        holds_tensors = field.form not in (int, float)
        if holds_tensors and (field.name, field.form, field.axes) in forms:
            payload.require_like(field.name, getattr(down, field.name))


def _check_finite(payload: Payload) -> None:
    """Raise `NotFinitePayload` if a tensor of a payload has a NaN or an infinity."""
    for item in payload.tensors():
        if not bool(torch.isfinite(item.value).all()):
            place = f"{type(payload).__name__}.{item.place}"
            raise NotFinitePayload(f"{place} holds a NaN or an infinity")


def _on_cpu(payload: Payload) -> tuple[Payload, list[Tensor]]:
    """Return a payload and its blocks: on the CPU, contiguous, aligned, and without gradient."""
    blocks = payload.blocks()
    plain = [
        b.is_cpu and not b.requires_grad and b.is_contiguous() and b.data_ptr() % ALIGNMENT == 0
        for b in blocks
    ]
    if all(plain):
        return payload, blocks
    payload = payload.copied(lambda tensor: aligned(tensor.detach().cpu().contiguous()))
    return payload, payload.blocks()


def _count_traffic(items: Sequence[Placed], bits: int = 32) -> Traffic:
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


@torch.no_grad()
def _are_finite(blocks: Sequence[Tensor]) -> bool:
    """Return True only if no tensor holds a NaN or an infinity.

    If the sum is finite, so are all numbers; this is 30 times faster than a test of each number.
    The result may be False for finite numbers whose sum overflows.
    """
    sums = [block.sum() for block in blocks if block.is_floating_point() or block.is_complex()]
    return cmath.isfinite(complex(sum(sums)))


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
