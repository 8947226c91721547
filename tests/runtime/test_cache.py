"""Values that runs of one process share: made once, bounded by kind."""

from __future__ import annotations

import pytest

from fedray.runtime.cache import Cache


def test_a_value_is_made_once():
    cache, made = Cache(), []

    def make() -> list[int]:
        made.append(1)
        return made

    assert cache.get("data", "a", make) is cache.get("data", "a", make)
    assert made == [1]
    assert cache.get("text", "a", list) == []
    cache.clear()
    cache.get("data", "a", make)
    assert made == [1, 1]


def test_the_least_recently_used_of_a_kind_goes_first():
    cache = Cache()
    first, second = (cache.get("data", key, object, most=2) for key in "ab")
    other = cache.get("text", "a", object, most=1)
    assert cache.get("data", "a", object, most=2) is first  # used again: b is older now
    cache.get("data", "c", object, most=2)
    assert cache.get("data", "a", object, most=2) is first
    assert cache.get("data", "b", object, most=2) is not second
    assert cache.get("text", "a", object, most=1) is other


def test_an_error_leaves_nothing():
    cache = Cache()
    with pytest.raises(ZeroDivisionError):
        cache.get("data", "a", lambda: 1 // 0)
    assert cache.get("data", "a", lambda: 3) == 3
