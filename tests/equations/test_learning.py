"""Methods whose clients predict with more than a trained head learn within a few rounds."""

from __future__ import annotations

import pytest

LEARNING = {"local_epochs": 2, "data.partition": "iid", "model.group": "cnn3"}
MOMENTUM = {**LEARNING, "rounds": 6, "optimizer.momentum": 0.9}


@pytest.mark.parametrize(
    ("method", "changes", "metric", "first", "gain"),
    [
        ("fedbabu", MOMENTUM, "global_accuracy", 0, 0.3),
        ("fedetf", {**MOMENTUM, "algorithm.scale": 5}, "global_accuracy", 0, 0.3),
        ("fedfa_augmentation", MOMENTUM, "global_accuracy", 0, 0.3),
        ("fedglcl", {**MOMENTUM, "model.projector": 24, "seed": 2}, "global_accuracy", 0, 0.3),
        ("fedpcl", {**LEARNING, "rounds": 8}, "local_accuracy", 1, 0.15),
    ],
)
def test_accuracy_rises(run, method, changes, metric, first, gain):
    accuracy = [result.metrics[metric] for result in run(method, changes).results]
    assert accuracy[-1] > accuracy[first] + gain
