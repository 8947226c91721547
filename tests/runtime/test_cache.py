"""Values that runs of one process share: made once, bounded by kind."""

from __future__ import annotations

import pytest

from fedray.runtime.assembly import SHARED, forget_shared, shared


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
    made = {key: shared("data", key, object) for key in range(SHARED)}
    other = shared("text", 0, object)
    assert shared("data", 0, object) is made[0]  # used again: 1 is older now
    shared("data", "new", object)
    assert shared("data", 0, object) is made[0]
    assert shared("data", 1, object) is not made[1]
    assert shared("text", 0, object) is other


def test_an_error_leaves_nothing():
    with pytest.raises(ZeroDivisionError):
        shared("data", "a", lambda: 1 // 0)
    assert shared("data", "a", lambda: 3) == 3
