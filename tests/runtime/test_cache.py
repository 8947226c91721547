"""What runs of one process share: found by what it is made of, bounded, forgotten in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedray.runtime.cache import Cache, held_bytes


def test_a_value_is_made_once():
    cache, made = Cache(), []

    def make() -> list[int]:
        made.append(1)
        return made

    assert cache.get("a", make) is cache.get("a", make)
    assert made == [1]
    assert cache.get("b", list) == []


def test_what_was_asked_for_last_stays_and_the_least_recently_used_goes():
    cache = Cache(most_bytes=250)

    def kilo() -> np.ndarray:
        return np.zeros(100, np.uint8)

    first = cache.get("a", kilo)
    cache.get("b", kilo)
    assert cache.get("a", kilo) is first  # used again: b is older now
    cache.get("c", kilo)
    assert (len(cache), cache.bytes) == (2, 200)
    assert cache.get("a", kilo) is first
    cache.get("large", lambda: np.zeros(1000, np.uint8))
    assert (len(cache), cache.bytes) == (1, 1000)


def test_what_cannot_be_made_leaves_nothing():
    cache = Cache()
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert len(cache) == 0
    assert cache.get("a", lambda: 3) == 3


def test_bytes_are_those_of_arrays_and_tensors_once(tmp_path):
    tensor = torch.zeros(10)
    assert held_bytes({"a": tensor, "b": [tensor, tensor.view(2, 5)]}) == 40
    assert held_bytes((np.zeros(3, np.int64), b"four")) == 28
    assert held_bytes(torch.nn.Linear(2, 3)) == 4 * (6 + 3)
    np.save(tmp_path / "x.npy", np.zeros(100))
    assert held_bytes(np.load(tmp_path / "x.npy", mmap_mode="r")[:50]) == 0
