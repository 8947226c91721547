"""FedLC's calibration by hand, where it is FedAvg, and what clients remember."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedray.algorithms.averaging.fedlc import calibrate
from fedray.core import ClientState, LocalContext
from fedray.models import ClassifierOutput

ONE_KIND = {"model.group": "cnn2"}


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_calibration_by_hand():
    f, n, y = torch.tensor([[2.0, 1.0]]), torch.tensor([16, 1]), torch.tensor([1])
    g = calibrate(f, n, 1.0)
    assert g.tolist() == [[1.5, 0.0]]
    assert F.cross_entropy(g, y).item() == pytest.approx(1.701413, abs=1e-6)


def test_tau_scales_the_margin_and_a_missing_class_has_one_of_100():
    margins = -calibrate(torch.zeros(1, 3), torch.tensor([0, 1, 16]), 0.5)
    torch.testing.assert_close(margins, torch.tensor([[50.0, 0.5, 0.25]]))


def test_a_missing_class_is_not_pushed_down():
    logits = torch.tensor([[0.3, -0.2, 0.8]], requires_grad=True)
    g = calibrate(logits, torch.tensor([9, 4, 0]), 1.0)
    F.cross_entropy(g, torch.tensor([0])).backward()
    assert abs(logits.grad[0, 2].item()) < 1e-30
    assert logits.grad[0, 1].item() > 0.1


def test_rarer_classes_get_the_larger_push():
    logits = torch.zeros(2, 2, requires_grad=True)
    g = calibrate(logits, torch.tensor([81, 1]), 1.0)
    F.cross_entropy(g, torch.tensor([0, 1]), reduction="sum").backward()
    assert logits.grad[1, 1].item() < logits.grad[0, 0].item() < 0


def test_uniform_counts_are_fedavg(run, assemble):
    data = assemble("fedavg", ONE_KIND).data
    labels = data.images.labels
    by_class = [np.flatnonzero(labels == c) for c in range(10)]
    indices = tuple(
        np.sort(np.concatenate([places[5 * k : 5 * k + 5] for places in by_class]))
        for k in range(4)
    )
    balanced = replace(data, train=indices)
    calibrated = run("fedlc", {**ONE_KIND, "algorithm.tau": 3}, balanced)
    plain = run("fedavg", ONE_KIND, balanced)
    first, last = plain.servers[0]["model"], plain.servers[-1]["model"]
    assert not torch.equal(last["head.weight"], first["head.weight"])
    ours = calibrated.servers[-1]["model"]
    for name, tensor in last.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-6)


def test_counts_are_the_training_images_of_each_client_and_not_stored(run, monkeypatch):
    used = []
    monkeypatch.setattr(
        "fedray.algorithms.averaging.fedlc.calibrate",
        lambda logits, counts, tau: used.append(tuple(counts.tolist())) or logits,
    )
    done = run("fedlc", {**ONE_KIND, "rounds": 3})
    data = done.assembly.data
    expected = [np.bincount(data.images.labels[train], minlength=10) for train in data.train]
    assert set(used) == {tuple(counts.tolist()) for counts in expected}
    assert len(set(used)) == 4
    assert all(not memory for memory in done.memories.values())


def test_predictions_use_the_raw_logits(assemble):
    algorithm = assemble("fedlc", ONE_KIND).algorithm
    state = ClientState({})
    output = ClassifierOutput(draw(4, 16), draw(4, 10))
    found = algorithm.predict(output, LocalContext(None, None, state, None))
    assert torch.equal(found, output.logits)
