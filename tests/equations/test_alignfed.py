"""AlignFed by hand: targets, schedule, alignment, averaged heads."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from tensors import CPU, gaussian

from fedray.algorithms.personalised.alignfed import (
    AlignFed,
    alignment_loss,
    schedule,
    spread_targets,
    uniformity,
)
from fedray.config import validate
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ClassifierOutput, Pixels

FEW = {"algorithm.target_steps": 5}


def test_uniformity_by_hand():
    points = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    a, b, c = exp(1 / 0.5), exp(0), exp(-1 / 0.5)
    expected = (2 * log(a + b + c) + log(a + 2 * b)) / 3
    assert float(uniformity(points, 0.5)) == pytest.approx(expected)


@pytest.mark.parametrize(("classes", "d"), [(4, 3), (5, 8), (10, 16)])
def test_targets_become_a_simplex(classes, d):
    targets = spread_targets(gaussian(classes, d), 2000, 0.5)
    torch.testing.assert_close(targets.norm(dim=1), torch.ones(classes))
    cosines = targets @ targets.T
    others = cosines[~torch.eye(classes, dtype=torch.bool)]
    torch.testing.assert_close(
        others, torch.full_like(others, -1 / (classes - 1)), atol=5e-3, rtol=0
    )


def test_targets_spread_in_fewer_dimensions_than_a_simplex_needs():
    start = F.normalize(gaussian(6, 2))
    assert float(uniformity(spread_targets(start, 500, 0.5), 0.5)) < float(uniformity(start, 0.5))


def test_schedule_over_the_rounds(assemble):
    assembly = assemble("alignfed", {"rounds": 10, **FEW})
    method, server = assembly.algorithm, assembly.server(CPU)
    state = method.init_server(server)

    def weight(round_):
        return method.downlink(state, [0], replace(server, round=round_))[0].weight

    assert weight(0) == weight(1) == pytest.approx(20)
    assert weight(6) == pytest.approx(6.325, abs=5e-4)
    assert weight(10) == pytest.approx(2 * 10**0.1)


def test_a_schedule_from_0_to_0_is_off():
    off = validate(AlignFed, {"lambda_start": 0, "lambda_end": 0}, "algorithm")
    assert schedule(off.lambda_start, off.lambda_end, 0.5) == 0


LOGITS = torch.tensor([[0.5, -1.0, 0.0], [0.25, 1.0, 0.0]])


def test_alignment_over_classes_by_hand():
    first = -log(exp(0.5) / (exp(0.5) + exp(-1) + 1))
    second = -log(exp(1) / (exp(0.25) + exp(1) + 1))
    found = alignment_loss(LOGITS, torch.tensor([0, 1]), "class")
    assert float(found) == pytest.approx((first + second) / 2)


def test_alignment_over_the_batch_by_hand():
    first = -log(exp(0.5) / (exp(0.5) + exp(0.25)))
    second = -log(exp(1) / (exp(-1) + exp(1)))
    # the third class has no sample and counts as 0 of 3
    found = alignment_loss(LOGITS, torch.tensor([0, 1]), "batch")
    assert float(found) == pytest.approx((first + second) / 3, rel=1e-5)
    # two samples of one class are averaged
    both = -log(exp(0.25) / (exp(0.5) + exp(0.25)))
    found = alignment_loss(LOGITS, torch.tensor([0, 0]), "batch")
    assert float(found) == pytest.approx((first + both) / 2 / 3, rel=1e-5)


def test_the_local_loss_by_hand(assemble):
    output = ClassifierOutput(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
    batch = Batch(Pixels(torch.zeros(1, 1, 8, 8)), torch.tensor([1]))
    state = ClientState({}, {"targets": torch.eye(2)})

    def loss(weight, softmax):
        keys = {"algorithm.temperature": 0.5, "algorithm.softmax": softmax}
        local = LocalContext(None, None, state, AlignFed.down({}, weight))
        return float(assemble("alignfed", keys).algorithm.loss(output, batch, local))

    align = log(1 + exp((0.6 - 0.8) / 0.5))
    assert loss(3.0, "class") == pytest.approx(log(2) + 3 * align)
    assert loss(0.0, "class") == loss(3.0, "batch") == pytest.approx(log(2))  # one image


def test_extractors_stay_personal_heads_meet_and_targets_are_kept(run):
    done = run("alignfed", {**FEW, "rounds": 1, "model.group": "cnn2"})
    targets = done.servers[0]["targets"]
    for state in (done.servers[1], *done.memories.values()):
        assert torch.equal(state["targets"], targets)
    samples = [len(indices) for indices in done.assembly.data.train]
    heads = torch.stack([done.models[client]["head.bias"] for client in range(4)])
    mean = (heads * torch.tensor(samples).unsqueeze(1)).sum(0) / sum(samples)
    torch.testing.assert_close(done.servers[1]["head"]["bias"], mean)
    layers = [name for name in done.models[0] if name.startswith("extractor.")]
    assert not any(torch.equal(done.models[0][name], done.models[1][name]) for name in layers)
