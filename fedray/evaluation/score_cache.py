"""Scores that hold as long as what they were measured on: a test is a pure function."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from fedray.core import Downlinks, Payload
from fedray.evaluation.score import Score


class ScoreCache:
    """The score of each client's last own test, until its state, or what it is sent, is another.

    A client that did not train since, and is sent the same bits, has the same score: it is not
    tested again.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[bytes, Score]] = {}
        self._hashes: dict[int, bytes] = {}

    def forget(self, client: int) -> None:
        """Forget a client's scores, since its state may have changed."""
        self._kept.pop(client, None)

    def clear(self) -> None:
        """Forget all scores, since any state may have changed."""
        self._kept.clear()

    def found(self, phase: int, sent: Downlinks) -> dict[int, Score]:
        """Return the scores that hold, by client.

        Args:
            phase: the first round of the data's phase.
            sent: what each client is tested with.
        """
        self._hashes = {}
        known: dict[int, Score] = {}
        for client, payload in sent.items():
            if client in self._kept and self._kept[client][0] == self._key(phase, payload):
                known[client] = self._kept[client][1]
        return known

    def keep(self, phase: int, sent: Downlinks, scores: Mapping[int, Score]) -> None:
        """Keep new scores; arguments as of `found`, which was asked of the same downloads."""
        for client, score in scores.items():
            self._kept[client] = (self._key(phase, sent[client]), score)
        self._hashes = {}  # of payloads that go

    def _key(self, phase: int, payload: Payload | None) -> bytes:
        """Return what determines a score besides the state; each distinct payload is read once."""
        if id(payload) not in self._hashes:
            self._hashes[id(payload)] = content(payload)
        return self._hashes[id(payload)] + phase.to_bytes(8, "little")


def content(payload: Payload | None) -> bytes:
    """Return a hash of the type and all tensors and numbers of a payload past the gate."""
    if payload is None:
        return b""
    found = hashlib.blake2b(payload.full_name().encode(), digest_size=16)
    for place, _, _, value in payload.items():
        if isinstance(value, Tensor):
            found.update(f"|{place}|{value.dtype}|{list(value.shape)}|".encode())
            found.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            found.update(f"|{place}|{value!r}|".encode())
    return found.digest()
