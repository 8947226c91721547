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
    SharedHead,
    alignment_loss,
    schedule,
    spread_targets,
    uniformity,
)
from fedray.algorithms.personalised.shared_head import Head
from fedray.config import validate
from fedray.core import Batch, ClientState, LocalContext
from fedray.errors import UserError
from fedray.models import ClassifierOutput, Pixels
from fedray.runtime.clients import ClientRuntime

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


@pytest.mark.parametrize(("done", "expected"), [(0, 20.0), (0.5, 6.325), (1, 2.0)])
def test_schedule_at_start_middle_and_end(done, expected):
    assert schedule(20, 2, done) == pytest.approx(expected, abs=5e-4)


def test_schedule_over_the_rounds(assemble):
    assembly = assemble("alignfed", {"rounds": 10, **FEW})
    method, server = assembly.algorithm, assembly.server(CPU)
    state = method.init_server(server)

    def weight(round_):
        return method.downlink(state, [0], replace(server, round=round_))[0].weight

    assert weight(0) == weight(1) == pytest.approx(20)
    assert weight(6) == pytest.approx(6.325, abs=5e-4)
    assert weight(10) == pytest.approx(2 * 10**0.1)


def test_a_schedule_to_0_is_refused():
    with pytest.raises(UserError, match="lambda_end=0 cannot be reached geometrically"):
        validate(AlignFed.HParams, {"lambda_end": 0}, "algorithm")
    off = validate(AlignFed.HParams, {"lambda_start": 0, "lambda_end": 0}, "algorithm")
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
    method = assemble("alignfed", {"algorithm.temperature": 0.5}).algorithm
    output = ClassifierOutput(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
    batch = Batch(Pixels(torch.zeros(1, 1, 8, 8)), torch.tensor([1]))
    state = ClientState({}, {"targets": torch.eye(2)})

    def loss(weight):
        local = LocalContext(None, None, state, SharedHead({}, weight))
        return float(method.loss(output, batch, local))

    align = log(1 + exp((0.6 - 0.8) / 0.5))
    assert loss(3.0) == pytest.approx(log(2) + 3 * align)
    assert loss(0.0) == pytest.approx(log(2))


def test_heads_are_averaged_by_samples(assemble):
    assembly = assemble("alignfed", FEW)
    method, server = assembly.algorithm, assembly.server(CPU)
    uplinks = {
        0: Head({"weight": torch.full((10, 16), 1.0), "bias": torch.zeros(10)}, 30),
        2: Head({"weight": torch.full((10, 16), 5.0), "bias": torch.full((10,), 8.0)}, 10),
    }
    before = method.init_server(server)
    after = method.server_update(before, uplinks, server)
    torch.testing.assert_close(after["head"]["weight"], torch.full((10, 16), 2.0))
    torch.testing.assert_close(after["head"]["bias"], torch.full((10,), 2.0))
    assert torch.equal(after["targets"], before["targets"])


def test_every_client_starts_from_the_shared_head_and_its_personal_extractor(assemble):
    assembly = assemble("alignfed", FEW)
    assert len(set(assembly.models.architectures)) == 2
    method, server = assembly.algorithm, assembly.server(CPU)
    state = method.init_server(server)
    down = method.downlink(state, range(4), server)
    runtime = ClientRuntime(assembly, CPU)
    for number in range(4):
        client = runtime.client(number, 1)
        kept = method.init_client(client)
        loaded = method.begin(client, kept, down[number]).model.state_dict()
        assert torch.equal(loaded["head.weight"], state["head"]["weight"])
        assert torch.equal(loaded["head.bias"], state["head"]["bias"])
        assert not torch.equal(kept.model["head.weight"], state["head"]["weight"])
        for name in kept.model:
            assert name.startswith("head.") or torch.equal(loaded[name], kept.model[name])


def test_extractors_stay_personal_and_heads_meet(run):
    done = run("alignfed", {**FEW, "rounds": 1, "model.group": "cnn2"})
    samples = [len(indices) for indices in done.assembly.data.train]
    heads = torch.stack([done.models[client]["head.bias"] for client in range(4)])
    mean = (heads * torch.tensor(samples).unsqueeze(1)).sum(0) / sum(samples)
    torch.testing.assert_close(done.servers[1]["head"]["bias"], mean)
    layers = [name for name in done.models[0] if name.startswith("extractor.")]
    assert not any(torch.equal(done.models[0][name], done.models[1][name]) for name in layers)


def test_targets_travel_once_and_are_kept(run):
    done = run("alignfed", {**FEW, "participation": 0.5, "rounds": 3})
    sent = [result.down.params.get("prototypes", 0) for result in done.results]
    assert sent == [4 * 10 * 16, 0, 0, 0]
    targets = done.servers[0]["targets"]
    assert all(torch.equal(done.servers[i]["targets"], targets) for i in range(4))
    assert all(torch.equal(done.memories[i]["targets"], targets) for i in range(4))


def test_the_alignment_and_its_softmax_change_the_clients(run):
    plain = run("alignfed", {**FEW, "algorithm.lambda_start": 0, "rounds": 1})
    aligned = run("alignfed", {**FEW, "rounds": 1})
    batch = run("alignfed", {**FEW, "algorithm.softmax": "batch", "rounds": 1})
    assert not plain.same_clients_as(aligned)
    assert not aligned.same_clients_as(batch)
