"""The gate that checks, transforms and counts every payload; clipping and noise of uploads.

The quantiser is FedTSP's (arXiv:2503.13543, supplementary G). Differential privacy: McMahan et al.,
"Learning Differentially Private Recurrent Language Models", ICLR 2018, arXiv:1710.06963.

    FlatClip, Section 2.1 -> Privacy.clipped
    the noisy mean over a fixed number of clients, Algorithm 1 -> Privacy.release

Central privacy: clients clip, and the server, which is trusted, adds noise once to the mean. Local
privacy: each client clips its upload and adds noise to it. Tensors that `is_covered` excludes are
sent unchanged.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedray.base.streams import Streams
from fedray.base.trees import ALIGNMENT, aligned, moved_to
from fedray.core.payload import (
    EXEMPT_KINDS,
    BadPayload,
    Call,
    Fields,
    Kind,
    NotFinitePayload,
    Payload,
    is_covered,
)
from fedray.core.sums import Total
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
        return _finite_on_cpu(payload), size

    def up(self, payload: Payload, call: Call) -> tuple[Payload, Traffic]:
        """Check, clip, noise, quantise and count the upload that a call returned.

        Raises:
            BadPayload: if the upload does not fit its declaration, or is not finite.
        """
        size = self._size(payload, self.up_bits)
        payload = _finite_on_cpu(payload)
        if self.privacy is not None:
            payload = self.privacy.protect(payload, call)
        if self.up_bits < 32:
            payload = payload.covered(lambda t: quantise(t, self.up_bits), self.statistics)
        return payload, size

    def _size(self, payload: Payload, bits: int) -> Traffic:
        """Return a payload's numbers and bytes by kind; check and count each form once."""
        form = payload.form(), bits
        if form not in self._sizes:
            payload.check_fields(self.axes)
            params: dict[str, float] = {}
            size: dict[str, float] = {}
            for _, kind, _, value in payload.items(self.statistics):
                numbers, occupied = 1, 4  # a plain number
                if isinstance(value, Tensor):
                    numbers, occupied = value.numel(), wire_bytes(kind, value, bits)
                params[kind] = params.get(kind, 0) + numbers
                size[kind] = size.get(kind, 0) + occupied
            self._sizes[form] = Traffic(params, size)
        return self._sizes[form]


def _finite_on_cpu(payload: Payload) -> Payload:
    """Return a payload on the CPU, contiguous, aligned, and without gradient.

    Raises:
        NotFinitePayload: if a tensor holds a NaN or an infinity.
    """
    total: complex = 0  # if it is finite, so are all; that is 30 times faster than to test each
    for name in payload.fields.floats:
        total += getattr(payload, name)
    for block in payload.blocks():
        is_aligned = block.is_contiguous() and block.data_ptr() % ALIGNMENT == 0
        if not (block.is_cpu and is_aligned) or block.requires_grad:
            return _finite_on_cpu(_plain(payload))
        if block.dtype.is_floating_point or block.dtype.is_complex:
            total += block.sum().item()
    if not cmath.isfinite(total):
        for place, _, _, value in payload.items():
            if not bool(torch.isfinite(torch.as_tensor(value)).all()):
                raise NotFinitePayload(f"{payload.fields.place}.{place} holds a NaN or an infinity")
    return payload


def _plain(payload: Payload) -> Payload:
    moved = iter(moved_to(payload.blocks(), torch.device("cpu")))
    return payload.copied(lambda _: aligned(next(moved)))


# --- quantisation --------------------------------------------------------------------------------


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


# --- privacy -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Privacy:
    """Clipping and noise of one experiment.

    Attributes:
        mode: "central", the server adds noise to the mean, or "local", each client adds noise to
            its upload.
        clip_norm: S, the L2 bound of a client's whole update.
        noise_multiplier: sigma; the noise has the standard deviation sigma * S, on the sum or on
            each upload.
        seed: the seed of the run. A simulation is repeatable, so its noise protects nobody who
            knows the seed; a deployment draws it elsewhere.
        statistics: names of the models' buffers, which are sent unchanged.
    """

    mode: Literal["central", "local"]
    clip_norm: float
    noise_multiplier: float
    seed: int = 0
    statistics: Collection[str] = ()

    def covers(self, sent: Fields) -> bool:
        """Return True if some of these fields are clipped and noised."""
        return any(o.kind not in EXEMPT_KINDS and not o.number for o in sent.values())

    def protect(self, upload: Payload, call: Call) -> Payload:
        """Return the clipped upload, with noise if privacy is local."""
        upload = self.clipped(upload, call.down)
        if self.mode == "central":
            return upload
        noise = self._noise(call.step, call.client.round, call.client.id)
        return upload.covered(noise, self.statistics)

    def clipped(self, upload: Payload, down: Payload | None) -> Payload:
        """Return r + (x - r) * min(1, S / ||x - r||) over all covered tensors together (FlatClip).

        x is the upload. r is the download's tensor with the same place, kind and axes, or 0 if
        there is none; the choice never depends on data. An update within the bound is returned
        unchanged, bit for bit.

        Raises:
            BadPayload: if a tensor is complex.
            NotFinitePayload: if the update's norm overflows.
        """
        sent = () if down is None else down.items(self.statistics)
        origins: dict[Any, Any] = {tuple(place): value for *place, value in sent}
        starts, updates = [], []
        for place, kind, axes, value in upload.items(self.statistics):
            if isinstance(value, Tensor) and value.is_complex() and kind not in EXEMPT_KINDS:
                raise BadPayload(f"{place} is complex, which privacy does not cover; send reals")
            if is_covered(kind, value):
                starts.append(origins.get((place, kind, axes), torch.zeros_like(value)).to(value))
                updates.append(value - starts[-1])
        length = update_norm(updates)
        if not math.isfinite(length):
            raise NotFinitePayload(f"the update in {upload.fields.place} has norm {length}")
        if length <= self.clip_norm:
            return upload
        pairs = zip(starts, updates, strict=True)
        values = (start + update * (self.clip_norm / length) for start, update in pairs)
        return upload.covered(lambda _: next(values), self.statistics)

    def release(self, total: Total, sent: Fields, *, round_: int, step: str) -> Total:
        """Return the sums over m uploads for the server step; unchanged if privacy is local.

        With central privacy, they are the sums that m uploads of the mean with noise have: its
        standard deviation is sigma * S / m on the covered tensors.
        """
        if self.mode == "local":
            return total
        count, noisy = len(total), self._noise(step, round_, count=len(total))

        def released(tensor: Tensor) -> Tensor:
            return noisy((tensor / count).float()).double() * count

        fields = sent(*map(total.sums.get, sent)).covered(released, self.statistics)
        return Total(total.clients, {n: vars(fields).get(n, own) for n, own in total.sums.items()})

    def _noise(
        self, step: str, round_: int, client: int = 0, count: int = 1
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that adds noise to the tensors of a mean of `count` uploads."""
        deviation = self.noise_multiplier * self.clip_norm / count
        purpose = f"privacy/{self.mode}/{step}"
        random = Streams(self.seed).numpy(purpose, round_=round_, client=client)

        def noisy(tensor: Tensor) -> Tensor:
            if deviation == 0:
                return tensor
            return tensor + torch.as_tensor(random.normal(0, deviation, tensor.shape)).to(tensor)

        return noisy


def update_norm(tensors: Iterable[Tensor]) -> float:
    """Return the L2 norm of all tensors as one vector, in double precision."""
    norms = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in tensors]
    return float(torch.stack(norms).norm()) if norms else 0.0


def exempt_fields(uploads: Iterable[Fields]) -> list[tuple[str, Kind]]:
    """Return the place and kind of every declared field that privacy does not cover."""
    return [
        (f"{fields.place}.{name}", field.kind)
        for fields in uploads
        for name, field in fields.items()
        if field.kind in EXEMPT_KINDS
    ]
