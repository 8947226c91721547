"""Values that runs of one process share: made once, bounded by kind."""

from __future__ import annotations

import pytest

from fedray.runtime.assembly import forget_shared, shared


@pytest.fixture(autouse=True)
def _empty():
    forget_shared()


def test_a_value_is_made_once():
    made = []

    def make() -> list[int]:
        made.append(1)
        return made

    assert shared("data", "a", make) is shared("data", "a", make)
    assert made == [1]
    assert shared("text", "a", list) == []
    forget_shared()
    shared("data", "a", make)
    assert made == [1, 1]


def test_the_least_recently_used_of_a_kind_goes_first():
    first, second = (shared("data", key, object, most=2) for key in "ab")
    other = shared("text", "a", object, most=1)
    assert shared("data", "a", object, most=2) is first  # used again: b is older now
    shared("data", "c", object, most=2)
    assert shared("data", "a", object, most=2) is first
    assert shared("data", "b", object, most=2) is not second
    assert shared("text", "a", object, most=1) is other


def test_an_error_leaves_nothing():
    with pytest.raises(ZeroDivisionError):
        shared("data", "a", lambda: 1 // 0)
    assert shared("data", "a", lambda: 3) == 3
