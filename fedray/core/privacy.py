"""Differential privacy of uploads: clipping of whole updates, and Gaussian noise.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018,
arXiv:1710.06963.

    FlatClip, Section 2.1 -> clip_update
    the noisy mean over a fixed number of clients, Algorithm 1 -> Privacy.noisy_mean

Central privacy: clients clip, and the server, which is trusted, adds noise once to the mean. Local
privacy: each client clips its upload and adds noise to it. Tensors that `is_covered` excludes are
sent unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedray.core.payload import BadPayload, Declared, Kind, NotFinitePayload, Payload, Placed
from fedray.core.sums import Total, check_terms, total_of
from fedray.streams import Streams
from fedray.trees import StateTree, is_tree, map_tensors

PrivacyMode: TypeAlias = Literal["central", "local"]

EXEMPT_KINDS: tuple[Kind, ...] = ("images", "statistics")
"""Kinds of payload fields that are never clipped, noised or quantised."""


COVERS = {
    "central": (
        "all downloads and the final model, against everybody but the server, which is trusted; "
        "epsilon holds while the seed, config.yaml and the participants in result.json stay with "
        "the server, and epsilon_known_participants when they do not"
    ),
    "local": (
        "every upload, against the server, other clients and eavesdroppers; epsilon is that of "
        "the client that uploaded most often, and sampling does not reduce it"
    ),
}
"""The data that epsilon protects, and against whom, by mode."""


def is_covered(kind: Kind, tensor: Tensor) -> bool:
    """Return True for a floating-point tensor whose kind is not exempt."""
    return tensor.is_floating_point() and kind not in EXEMPT_KINDS and tensor.numel() > 0


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

    mode: PrivacyMode
    clip_norm: float
    noise_multiplier: float
    seed: int = 0
    statistics: Collection[str] = ()

    def protect_upload(
        self, payload: Payload, down: Payload | None, *, round_: int, client: int, step: str
    ) -> Payload:
        """Return the clipped upload, with noise if privacy is local."""
        payload = clip_update(payload, down, self.clip_norm, self.statistics)
        if self.mode == "central":
            return payload
        random = self._random(f"local/{step}", round_, client)
        noisy = _add_noise(
            _covered_tensors(payload, self.statistics),
            self.noise_multiplier * self.clip_norm,
            random,
        )
        return _replace_covered(payload, noisy, self.statistics)

    def protect_uploads(
        self, uploads: Mapping[int, Payload], *, round_: int, step: str
    ) -> Mapping[int, Payload]:
        """Return the uploads for the server step; unchanged if privacy is local.

        With central privacy, all clients get the noisy mean of their uploads (`noisy_mean`), so
        that results computed from the uploads reveal no more than the mean.

        Raises:
            ValueError: if the uploads do not have the same names and shapes.
        """
        if self.mode == "local" or not any(
            has_covered(upload, self.statistics) for upload in uploads.values()
        ):
            return uploads
        mean = self.noisy_mean(total_of(terms_of, uploads), round_=round_, step=step)
        return dict.fromkeys(uploads, mean)

    def noisy_mean(self, total: Total, *, round_: int, step: str) -> Payload:
        """Return the mean of m clipped uploads, with noise on the covered tensors.

        The noise has the standard deviation sigma * S / m.

        Args:
            total: the sums of `terms_of` the uploads.
            round_: the round.
            step: the client step.
        """
        ((name, sums),) = total.sums.items()
        payload = Payload.types[name]
        fields = payload.declared.items()
        mean = payload(*[_mean_field(field, sums[name], len(total)) for name, field in fields])
        deviation = self.noise_multiplier * self.clip_norm / len(total)
        random = self._random(f"central/{step}", round_, 0)
        noisy = _add_noise(_covered_tensors(mean, self.statistics), deviation, random)
        return _replace_covered(mean, noisy, self.statistics)

    def _random(self, purpose: str, round_: int, client: int) -> np.random.Generator:
        streams = Streams(self.seed)
        return streams.numpy(f"privacy/{purpose}", round_=round_, client=client)


def clip_update(
    payload: Payload, down: Payload | None, norm: float, statistics: Collection[str] = ()
) -> Payload:
    """Return r + (x - r) * min(1, S / ||x - r||) over all covered tensors together (FlatClip).

    r is the download's tensor with the same place, kind and axes, or 0 if there is none; the choice
    never depends on data. An update within the bound is returned unchanged, bit for bit.

    Args:
        payload: x, the upload.
        down: r, the client's download.
        norm: S.
        statistics: names of a model's buffers, which are not clipped.

    Raises:
        NotFinitePayload: if the update's norm overflows.
    """
    sent = () if down is None else down.tensors(statistics)
    origins = {(p.place, p.kind, p.axes): p.value for p in sent}
    updates, starts = [], []
    for item in payload.tensors(statistics):
        if item.value.is_complex() and item.kind not in EXEMPT_KINDS:
            raise BadPayload(f"{item.place} is complex, which privacy does not cover; send reals")
    for item in filter(_is_covered, payload.tensors(statistics)):
        value = item.value.detach().cpu()
        start = origins.get((item.place, item.kind, item.axes))
        start = torch.zeros_like(value) if start is None else start.to(value)
        if start.shape != value.shape:
            raise ValueError(
                f"{item.place} has shape {list(value.shape)} in the upload, but shape "
                f"{list(start.shape)} in the download, so there is no update to clip"
            )
        starts.append(start)
        updates.append(value - start)
    length = update_norm(updates)
    if not math.isfinite(length):
        raise NotFinitePayload(f"the update in {type(payload).__qualname__} has norm {length}")
    if length <= norm:
        return payload
    pairs = zip(starts, updates, strict=True)
    clipped = [start + update * (norm / length) for start, update in pairs]
    return _replace_covered(payload, clipped, statistics)


def update_norm(tensors: Iterable[Tensor]) -> float:
    """Return the L2 norm of all tensors as one vector, in double precision."""
    norms = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in tensors]
    return float(torch.stack(norms).norm()) if norms else 0.0


def has_covered(payload: Payload, statistics: Collection[str] = ()) -> bool:
    """Return True if any tensor of a payload is clipped and noised."""
    return any(map(_is_covered, payload.tensors(statistics)))


def _is_covered(item: Placed) -> bool:
    return is_covered(item.kind, item.value)


def _covered_tensors(payload: Payload, statistics: Collection[str]) -> list[Tensor]:
    """Return the tensors that are clipped and noised, in the payload's order, on the CPU."""
    covered = filter(_is_covered, payload.tensors(statistics))
    return [item.value.detach().cpu() for item in covered]


def _replace_covered(
    payload: Payload, values: Iterable[Tensor], statistics: Collection[str]
) -> Payload:
    """Return the payload with its covered tensors replaced by `values`, in the same order."""
    remaining: Iterator[Tensor] = iter(values)
    return payload.map(
        lambda kind, old: next(remaining) if is_covered(kind, old) else old, statistics
    )


def _add_noise(
    tensors: Iterable[Tensor], deviation: float, random: np.random.Generator
) -> list[Tensor]:
    if deviation == 0:
        return list(tensors)
    return [
        tensor + torch.as_tensor(random.normal(0, deviation, tuple(tensor.shape))).to(tensor)
        for tensor in tensors
    ]


def terms_of(upload: Payload) -> StateTree:
    """Return what an upload adds to the sums of `Privacy.noisy_mean`: its fields, by its type."""
    trees = {
        name: value if is_tree(value) or isinstance(value, Tensor) else torch.tensor(float(value))
        for name, value in vars(upload).items()
    }
    return check_terms({upload.full_name(): map_tensors(_doubled, trees)}, upload)


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _mean_field(field: Declared, total: Any, count: int) -> Any:
    """Return the mean of a field from its sum; floating-point tensors in mappings are float32."""
    if is_tree(total):
        return {name: _mean_field(field, inner, count) for name, inner in total.items()}
    if field.number:
        return field.number(round(float(total) / count) if field.number is int else total / count)
    if not total.is_floating_point():
        return total
    return (total / count).to(field.dtype if field.axes else torch.float32)


def exempt_fields(uploads: Iterable[type[Payload]]) -> list[tuple[str, Kind]]:
    """Return the place and kind of every declared field that privacy does not cover."""
    return [
        (f"{payload.__qualname__}.{name}", field.kind)
        for payload in uploads
        for name, field in payload.declared.items()
        if field.kind in EXEMPT_KINDS
    ]
