"""Which replies are late."""

from __future__ import annotations

import pytest

from fedray.runtime import ray_executor
from fedray.runtime.ray_executor import Call, _late


class StandInRay:
    """Ray and its clock for calls that take a known time on their worker."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done_at: dict[str, float] = {}

    def calls(self, seconds: dict[str, list[float]]) -> list[Call]:
        """One call after the other on each worker, named like `a0`, sent in turns."""
        for worker, each in seconds.items():
            for number in range(len(each)):
                self.done_at[f"{worker}{number}"] = sum(each[: number + 1])
        longest = max(map(len, seconds.values()))
        return [
            Call(worker, [number], f"{worker}{number}")
            for number in range(longest)
            for worker, each in seconds.items()
            if number < len(each)
        ]

    def monotonic(self) -> float:
        return self.now

    def wait(
        self, refs: list[str], num_returns: int, timeout: float
    ) -> tuple[list[str], list[str]]:
        self.now = max(self.now, min(min(map(self.done_at.get, refs)), self.now + timeout))
        ready = [ref for ref in refs if self.done_at[ref] <= self.now][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]


@pytest.fixture
def ray(monkeypatch) -> StandInRay:
    stand_in = StandInRay()
    monkeypatch.setattr(ray_executor, "ray", stand_in)
    monkeypatch.setattr(ray_executor, "time", stand_in)
    return stand_in


def test_waiting_for_a_worker_makes_nobody_late(ray):
    assert _late(ray.calls({"a": [1.0] * 40, "b": [9.0] * 4}), 10) == (set(), set())


def test_who_stands_behind_a_late_call_is_not_late(ray):
    late, behind = _late(ray.calls({"a": [3, 3, 600, 3, 3], "b": [9, 9, 9, 9]}), 10)
    assert (late, behind) == ({"a2"}, {"a3", "a4"})
