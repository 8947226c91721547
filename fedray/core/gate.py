"""The gate that checks, transforms and counts every payload.

Paper: the quantiser is FedTSP's (arXiv:2503.13543, supplementary G).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
from fedray.core.privacy import Privacy, is_covered, terms_of
from fedray.core.sums import Summand, Summands, Total, stack_trees, total_of
from fedray.storage.run import Traffic
from fedray.trees import leaves, moved_to

CPU = torch.device("cpu")
SCALE_BYTES = 4  # a quantised vector has one float32 scale
SMALL = 16_384  # number of elements up to which a norm is faster than a sum


@dataclass(frozen=True)
class Gate:
    """The gate of one experiment.

    Args:
        axes: sizes of the axes that the setting fixes: {"C": classes, "d": feature width, ...}.
        uploads: the upload types that the method declares; None allows any.
        downloads: the download types that the method declares; None allows any.
        up_bits: bits per number of an upload; 32 does not quantise.
        privacy: clipping and noise of uploads, or None.
    """

    axes: Mapping[str, int]
    uploads: PayloadTypes | None = None
    downloads: PayloadTypes | None = None
    up_bits: int = 32
    privacy: Privacy | None = None

    def down(self, payload: Payload) -> tuple[Payload, Traffic]:
        """Check, copy and count a download; the result shares no memory with `payload`.

        Raises:
            BadPayload: if the payload does not fit its declaration, or is not finite.
        """
        self._check_fields(payload, "downloads")
        payload = _to_cpu(payload)
        items = [*payload.items()]
        _check_finite(payload, items)
        return payload, _count_traffic(items)

    def up(self, payload: Payload, call: Call, *, copy: bool = True) -> tuple[Payload, Traffic]:
        """Check, clip, noise, quantise and count an upload.

        Args:
            payload: the upload of the client.
            call: the client's call that returned the upload.
            copy: whether the result shares no memory with `payload`; False for uploads that are
                only summed.

        Raises:
            BadPayload: if the payload does not fit its declaration or the call, or is not finite.
        """
        self._check_fields(payload, "uploads")
        _check_like(payload, call.down)
        _, tensors = _flat(payload)
        if copy or not _are_plain(tensors):  # checks of values on a device would synchronise
            payload = _to_cpu(payload, copy=copy)
        payload.check(call)
        items = [*payload.items()]
        _check_finite(payload, items)
        if self.privacy is not None:
            client, step = call.client, call.step
            payload = self.privacy.protect_upload(
                payload, call.down, round_=client.round, client=client.id, step=step
            )
        if self.up_bits < 32:
            payload = _quantise_payload(payload, self.up_bits)
        return payload, _count_traffic(items, self.up_bits)

    def up_together(
        self, payloads: Sequence[Payload], calls: Sequence[Call], *, copy: bool = True
    ) -> list[tuple[Payload, Traffic]]:
        """Return `up` of several uploads; those of one form are checked and counted together.

        Raises:
            BadPayload: if one of them is wrong, without saying whose.
        """
        form, first = _flat(payloads[0])
        others = [_flat(payload) for payload in payloads[1:]]
        is_plain = self.privacy is None and self.up_bits >= 32
        if not is_plain or any(other != form for other, _ in others):
            pairs = zip(payloads, calls, strict=True)
            return [self.up(payload, call, copy=copy) for payload, call in pairs]
        self._check_fields(payloads[0], "uploads")
        _check_like(payloads[0], calls[0].down)
        tensors = [*first, *chain.from_iterable(values for _, values in others)]
        if copy or not _are_plain(tensors):
            payloads = [_to_cpu(payload, copy=copy) for payload in payloads]
            tensors = [*chain.from_iterable(_flat(payload)[1] for payload in payloads)]
        for payload, call in zip(payloads, calls, strict=True):
            if call.down is not calls[0].down:
                _check_like(payload, call.down)
            payload.check_numbers()
            payload.check(call)
        if not _are_finite(tensors):
            for payload in payloads:
                _check_finite(payload, [*payload.items()])
        traffic = _count_traffic([*payloads[0].items()], self.up_bits)
        return [(payload, traffic) for payload in payloads]

    def release(
        self, uploads: Mapping[int, Payload], *, round_: int, step: str
    ) -> dict[int, Payload]:
        """Return the uploads for the server step, with the noise of central privacy if set."""
        if self.privacy is None:
            return dict(uploads)
        return dict(self.privacy.protect_uploads(uploads, round_=round_, step=step))

    def summand(self, summand: Summand) -> Summand:
        """Return the terms that an upload adds to a sum; with central privacy, the whole upload."""
        return terms_of if self._is_central else summand

    def summands(self, summands: Summands) -> Summands:
        """Return the terms of several uploads as rows, as `summand` does of one."""
        if not self._is_central:
            return summands
        return lambda uploads: stack_trees([*map(terms_of, uploads)])

    def release_total(self, total: Total, summand: Summand, *, round_: int, step: str) -> Total:
        """Return the sums for the server step; with central privacy, those of noisy means."""
        if self.privacy is None or not self._is_central or not total:
            return total  # sums of clients that added their own noise
        mean = self.privacy.noisy_mean(total, round_=round_, step=step)
        return total_of(summand, dict.fromkeys(total.clients, mean))

    @property
    def _is_central(self) -> bool:
        return self.privacy is not None and self.privacy.mode == "central"

    def _check_fields(self, payload: Any, direction: Literal["uploads", "downloads"]) -> None:
        types, kind = getattr(self, direction), type(payload)
        if not isinstance(payload, Payload) or (types is not None and kind not in types):
            expected = " or ".join(f"a {allowed.__name__}" for allowed in types or (Payload,))
            raise BadPayload(
                f"a {kind.__name__} cannot travel, expected {expected} (`{direction}` of the "
                "method)"
            )
        payload.check_fields(self.axes)


def _flat(payload: Payload) -> tuple[list[object], list[Tensor]]:
    """Return a payload's form (type, places, dtypes, shapes), and its tensors."""
    form: list[object] = [type(payload)]
    tensors = []
    for path, value in leaves(vars(payload)):
        if isinstance(value, Tensor):
            form += path, value.dtype, value.shape
            tensors.append(value)
        else:
            form.append(path)
    return form, tensors


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


def _check_finite(payload: Payload, items: Sequence[Placed]) -> None:
    """Raise `NotFinitePayload` if a tensor among a payload's `items` has a NaN or an infinity."""
    tensors = [item for item in items if isinstance(item.value, Tensor)]
    if _are_finite([item.value for item in tensors]):
        return
    for item in tensors:
        if not _is_finite(item.value):
            place = f"{type(payload).__name__}.{item.place}"
            raise NotFinitePayload(f"{place} holds a NaN or an infinity")


def _to_cpu(payload: Payload, *, copy: bool = True) -> Payload:
    tensors = [item.value for item in payload.tensors()]
    placed = zip(tensors, moved_to(tensors, CPU), strict=True)
    results = iter([new.clone() if copy and old.is_cpu else new for old, new in placed])
    return payload.map(lambda *_: next(results))


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    """Return True if all tensors are contiguous, on the CPU, and without gradient."""
    return all(t.is_cpu and t.is_contiguous() and not t.requires_grad for t in tensors)


def _quantise_payload(payload: Payload, bits: int) -> Payload:
    return payload.map(
        lambda kind, tensor: quantise(tensor, bits) if is_covered(kind, tensor) else tensor
    )


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
def _are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return True only if no tensor holds a NaN or an infinity.

    One call computes the norms of all small tensors, because a call costs more than a norm. The
    result may be False for finite numbers whose norm overflows.
    """
    small = [t for t in tensors if _is_small(t)]
    norms = torch._foreach_norm(small) if small else ()
    return (not norms or math.isfinite(float(torch.stack(norms).sum()))) and all(
        _is_finite(tensor) for tensor in tensors if not _is_small(tensor)
    )


def _is_small(tensor: Tensor) -> bool:
    """Return True for few real numbers on the CPU, as `_are_finite` tests them together."""
    return tensor.is_floating_point() and tensor.numel() <= SMALL and tensor.device.type == "cpu"


def _is_finite(tensor: Tensor) -> bool:
    """Return True if no number is NaN or infinite.

    If the sum is finite, so are all numbers; this is 30 times faster than a test of each number. A
    sum may also overflow, so otherwise each number is tested.
    """
    is_real = tensor.is_floating_point()
    if is_real and math.isfinite(float(tensor.detach().sum())):
        return True
    return not (is_real or tensor.is_complex()) or bool(torch.isfinite(tensor).all())


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
