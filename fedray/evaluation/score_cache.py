"""Reuse of scores: a test is a pure function, so equal inputs give the same score."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from fedray.core import Downlinks, Payload
from fedray.evaluation.score import Score


class ScoreCache:
    """The score of each client's last own test, valid until its state or its download changes.

    A client that has not trained since and receives the same bits is not tested again.
    """

    def __init__(self) -> None:
        self._scores: dict[int, tuple[bytes, Score]] = {}
        self._hashes: dict[int, bytes] = {}

    def forget(self, client: int) -> None:
        """Remove a client's score, because its state may have changed."""
        self._scores.pop(client, None)

    def clear(self) -> None:
        """Remove all scores, because any state may have changed."""
        self._scores.clear()

    def lookup(self, phase: int, downloads: Downlinks) -> dict[int, Score]:
        """Return the valid scores by client.

        Args:
            phase: the first round of the data's phase.
            downloads: the download that each client is tested with.
        """
        self._hashes = {}
        scores: dict[int, Score] = {}
        for client, payload in downloads.items():
            if client in self._scores and self._scores[client][0] == self._key(phase, payload):
                scores[client] = self._scores[client][1]
        return scores

    def keep(self, phase: int, downloads: Downlinks, scores: Mapping[int, Score]) -> None:
        """Store new scores; `phase` and `downloads` are those of the preceding `lookup`."""
        for client, score in scores.items():
            self._scores[client] = (self._key(phase, downloads[client]), score)
        self._hashes = {}  # the payloads may be freed

    def _key(self, phase: int, payload: Payload | None) -> bytes:
        """Return the inputs of a score besides the state; hash each distinct payload once."""
        if id(payload) not in self._hashes:
            self._hashes[id(payload)] = payload_hash(payload)
        return self._hashes[id(payload)] + phase.to_bytes(8, "little")


def payload_hash(payload: Payload | None) -> bytes:
    """Return a hash of a payload's type and of all its tensors and numbers."""
    if payload is None:
        return b""
    digest = hashlib.blake2b(payload.full_name().encode(), digest_size=16)
    for place, _, _, value in payload.items():
        if isinstance(value, Tensor):
            digest.update(f"|{place}|{value.dtype}|{list(value.shape)}|".encode())
            digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"|{place}|{value!r}|".encode())
    return digest.digest()
