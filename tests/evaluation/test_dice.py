"""Dice coefficients by hand."""

from __future__ import annotations

import pytest
import torch
from answers import evaluated

from fedray.evaluation.answers import count_answers
from fedray.evaluation.measures import Dice


def dice(*clients, classes, **domains) -> dict[str, float]:
    return Dice().compute(evaluated(*clients, dense_classes=classes, domains=domains))


def test_counts_by_hand():
    predicted, labels = [0, 0, 1, 1, 2, 0], torch.tensor([0, 1, 1, 1, 0, 0])
    logits = torch.eye(4)[predicted]
    of_one = count_answers(logits, labels, torch.zeros(6, dtype=torch.int64), 1)
    assert of_one.tolist() == [[[2, 2, 0, 0], [3, 3, 0, 0], [3, 2, 1, 0]]]
    of_two = count_answers(logits, labels, torch.tensor([0, 0, 0, 1, 1, 1]), 2, top_k=2)
    assert of_two.tolist() == [
        [[1, 1, 0, 0], [1, 2, 0, 0], [2, 1, 0, 0], [1, 2, 0, 0]],
        [[1, 1, 0, 0], [2, 1, 0, 0], [1, 1, 1, 0], [2, 1, 0, 0]],
    ]


def test_dice_by_hand():
    clients = [
        ((2, 1, 0, 0), (2, 2, 0, 0), (3, 1, 0, 0)),
        ((2, 2, 0, 0), (3, 3, 0, 0), (3, 2, 1, 0)),
    ]
    ground, a, b = (4 / 6 + 4 / 5) / 2, (4 / 5 + 2 / 3) / 2, 0.0
    domains = {"north": [0], "south": [1], "west": [2]}
    found = dice(*clients, classes=("ground", "a", "b", "c"), **domains)
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
    assert dice((3, 4), (0, 0), classes=()) == {}


def test_a_client_without_test_images_counts_in_nothing():
    one, without = ((1, 0), (1, 1), (2, 0)), ((0, 0), (0, 0), (0, 0))
    assert dice(one, without, classes=("a", "b")) == dice(one, classes=("a", "b"))
    assert dice(without, classes=("a", "b")) == {}
