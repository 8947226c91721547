"""fedray's methods have the weights and accuracies that the original code of their papers had."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tools.originals.federation import TEST, run_fedray
from tools.originals.records import FOLDER, distance, numbers

FILES = sorted(FOLDER.glob("*.json"))
LARGEST = 30_000


@cache
def recorded(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def case(path: Path, setting: str) -> Any:
    """A record in one setting; of prompts the first tier has half of the clients a round."""
    is_slow = setting == "full" and "model.clip=small" in recorded(path)["values"]
    marks = pytest.mark.slow if is_slow else ()
    return pytest.param(path, setting, marks=marks, id=f"{path.stem}-{setting}")


@pytest.mark.parametrize(
    ("path", "setting"), [case(path, setting) for path in FILES for setting in ("full", "half")]
)
def test_a_method_equals_the_original_for_three_rounds(path, setting):
    original = recorded(path)
    assignments = [*original["values"], *original["switches"]]
    states = run_fedray(original["method"], assignments, setting).states
    for state, expected in zip(states[1:], original["rounds"][setting], strict=True):
        for model, numbers_there in zip(state.models, expected["models"], strict=True):
            assert distance(numbers(model), numbers_there) < 1e-5
        assert state.accuracies == pytest.approx(expected["accuracies"], abs=1.01 / TEST)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_records_are_small_and_were_equal_when_they_were_made(path):
    original = recorded(path)
    assert path.stat().st_size < LARGEST
    assert path.stem.startswith(original["method"])
    assert max(original["difference"].values()) < 1e-5
