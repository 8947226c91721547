"""Dice coefficients by hand."""

from __future__ import annotations

import pytest
import torch

from fedray.evaluation.measures import Dice
from fedray.evaluation.metrics import DataFacts, Evaluated
from fedray.evaluation.score import Score, overlap


def dice(scores, classes, domains=None) -> dict[str, float]:
    facts = DataFacts(domains=domains or {}, dense_classes=classes)
    return Dice().compute(Evaluated(facts, scores))


def test_overlap_by_hand():
    guesses, labels = torch.tensor([0, 0, 1, 1, 2, 0]), torch.tensor([0, 1, 1, 1, 0, 0])
    of_one = overlap(guesses, labels, 4, torch.zeros(6, dtype=torch.int64), 1)
    assert of_one.tolist() == [[[2, 2, 0, 0], [3, 3, 0, 0], [3, 2, 1, 0]]]
    of_two = overlap(guesses, labels, 4, torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    assert of_two.tolist() == [
        [[1, 1, 0, 0], [1, 2, 0, 0], [2, 1, 0, 0]],
        [[1, 1, 0, 0], [2, 1, 0, 0], [1, 1, 1, 0]],
    ]


def test_dice_by_hand():
    scores = {
        1: Score.by_class((2, 2, 0, 0), (3, 3, 0, 0), (3, 2, 1, 0)),
        0: Score.by_class((2, 1, 0, 0), (2, 2, 0, 0), (3, 1, 0, 0)),
    }
    ground, a, b = (4 / 6 + 4 / 5) / 2, (4 / 5 + 2 / 3) / 2, 0.0
    domains = {"north": [0], "south": [1], "west": [2]}
    found = dice(scores, ("ground", "a", "b", "c"), domains)
    assert found == pytest.approx(
        {
            "dice_ground": ground,
            "dice_a": a,
            "dice_b": b,  # client 0 has neither guessed nor got any: client 1's counts alone
            "dice": (a + b) / 2,  # without the background, and without c, which is nowhere
            "dice_in_north": 2 / 3,
            "dice_in_south": (4 / 5 + 0) / 2,
        }
    )


def test_there_is_no_dice_of_images():
    assert dice({0: Score(3, 4), 1: Score(0, 0)}, ()) == {}


def test_a_client_without_test_images_counts_in_nothing():
    one = Score.by_class((1, 0), (1, 1), (2, 0))
    without = Score.by_class((0, 0), (0, 0), (0, 0))
    assert dice({0: one, 1: without}, ("a", "b")) == dice({0: one}, ("a", "b"))
    assert dice({1: without}, ("a", "b")) == {}
