"""Differential privacy of uploads: clipping of whole updates, and Gaussian noise.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018,
arXiv:1710.06963.

    FlatClip, Section 2.1 -> Privacy.clipped
    the noisy mean over a fixed number of clients, Algorithm 1 -> Privacy.release

Central privacy: clients clip, and the server, which is trusted, adds noise once to the mean. Local
privacy: each client clips its upload and adds noise to it. Tensors that `is_covered` excludes are
sent unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedray.base.streams import Streams
from fedray.core.payload import (
    BadPayload,
    Call,
    Fields,
    Kind,
    NotFinitePayload,
    Payload,
)
from fedray.core.sums import Total

EXEMPT_KINDS: tuple[Kind, ...] = ("images", "statistics")
"""Kinds of payload fields that are never clipped, noised or quantised."""


def is_covered(kind: Kind, value: Any) -> bool:
    """Return True for a floating-point tensor whose kind is not exempt."""
    is_exempt = kind in EXEMPT_KINDS or not isinstance(value, Tensor)
    return not is_exempt and value.is_floating_point() and value.numel() > 0


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
        return upload.map(noise, self.statistics)

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
        origins = {(place, kind, axes): value for place, kind, axes, value in sent}
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
        return upload.map(
            lambda kind, value: next(values) if is_covered(kind, value) else value, self.statistics
        )

    def release(self, total: Total, sent: Fields, *, round_: int, step: str) -> Total:
        """Return the sums over m uploads for the server step; unchanged if privacy is local.

        With central privacy, they are the sums that m uploads of the mean with noise have: its
        standard deviation is sigma * S / m on the covered tensors.
        """
        if self.mode == "local":
            return total
        count, noisy = len(total), self._noise(step, round_, count=len(total))

        def released(kind: Kind, tensor: Tensor) -> Tensor:
            if not is_covered(kind, tensor):
                return tensor
            return noisy(kind, (tensor / count).float()).double() * count

        fields = sent(*map(total.sums.get, sent)).map(released, self.statistics)
        return Total(total.clients, {n: vars(fields).get(n, own) for n, own in total.sums.items()})

    def _noise(
        self, step: str, round_: int, client: int = 0, count: int = 1
    ) -> Callable[[Kind, Tensor], Tensor]:
        """Return a function that adds noise to the covered tensors of a mean of `count` uploads."""
        deviation = self.noise_multiplier * self.clip_norm / count
        purpose = f"privacy/{self.mode}/{step}"
        random = Streams(self.seed).numpy(purpose, round_=round_, client=client)

        def noisy(kind: Kind, tensor: Tensor) -> Tensor:
            if deviation == 0 or not is_covered(kind, tensor):
                return tensor
            noise = random.normal(0, deviation, tuple(tensor.shape))
            return tensor + torch.as_tensor(noise).to(tensor)

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
