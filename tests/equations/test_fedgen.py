"""FedGen by hand: the generator, its ensemble, and what clients learn from it."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from reference import THREE, ReferenceClients
from tensors import CPU, same, seeded
from torch import nn

from fedray.algorithms.distillation.fedgen import (
    FedGen,
    draw_labels,
    ensemble_loss,
    generated_features,
    generated_loss,
)
from fedray.algorithms.personalised.shared_head import Head
from fedray.errors import UserError
from fedray.runtime.clients import ClientRuntime

FEW = {"algorithm.server_epochs": 5, "algorithm.hidden_dim": 24, "algorithm.noise_dim": 4}


def test_the_generator_by_hand():
    generator = {
        "w1": torch.tensor([[1.0, 0.0, 4.0]]),  # one number of noise, two classes
        "b1": torch.tensor([7.0]),  # batch norm takes it away
        "scale": torch.tensor([2.0]),
        "shift": torch.tensor([1.0]),
        "w2": torch.tensor([[1.0], [-1.0]]),
        "b2": torch.tensor([0.0, 0.5]),
    }
    found = generated_features(generator, torch.tensor([[2.0], [0.0]]), torch.tensor([0, 1]))
    # 2 and 4 become -1 and 1, then -1 and 3, then 0 and 3
    expected = torch.tensor([[0.0, 0.5], [3.0, -2.5]])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_labels_are_as_frequent_as_all_clients_images():
    found = draw_labels(torch.tensor([0, 30, 0, 10]), 4000, seeded())
    assert found.unique().tolist() == [1, 3]
    assert float((found == 1).float().mean()) == pytest.approx(0.75, abs=0.03)


def test_eq4_is_the_cross_entropy_of_the_ensembles_logits():
    heads = {
        "weight": torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 4.0], [0.0, 0.0]]]),
        "bias": torch.tensor([[0.0, 0.0], [1.0, 0.0]]),
    }
    features = torch.tensor([[2.0, 1.0]])
    # heads give (2, 1) and (5, 0); 3/4 and 1/4 of them (2.75, 0.75)
    found = ensemble_loss(features, torch.tensor([1]), heads, torch.tensor([0.75, 0.25]))
    assert float(found) == pytest.approx(log(1 + exp(2.0)))


def test_eq4_of_linear_heads_is_that_of_their_mean():
    weight, bias = torch.randn(3, 4, 6, generator=seeded()), torch.randn(3, 4, generator=seeded(1))
    features, labels = torch.randn(8, 6, generator=seeded(2)), torch.arange(8) % 4
    shares = torch.tensor([0.5, 0.3, 0.2])
    mean = torch.einsum("k,kcd->cd", shares, weight), shares @ bias
    found = ensemble_loss(features, labels, {"weight": weight, "bias": bias}, shares)
    torch.testing.assert_close(found, F.cross_entropy(F.linear(features, *mean), labels))


def test_eq5_touches_the_head_alone(assemble):
    model = ClientRuntime(assemble("fedgen"), CPU).client(0, 1).skeleton.model
    features = torch.ones(2, 16)
    found = generated_loss(model.head, features, torch.tensor([3, 3]))
    assert float(found.detach()) == pytest.approx(log(10))  # a head of zeros
    found.backward()
    learning = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learning == {"head.weight", "head.bias"}


def test_two_rounds_agree_with_a_straight_loop(run):
    done = run("fedgen", {**THREE, **FEW, "algorithm.generated_weight": 0.5})
    straight = ReferenceClients(done)
    drawn = done.servers[0]["generator"]
    linear, norm, out = nn.Linear(14, 24), nn.BatchNorm1d(24), nn.Linear(24, 16)
    linear.load_state_dict({"weight": drawn["w1"], "bias": drawn["b1"]})
    out.load_state_dict({"weight": drawn["w2"], "bias": drawn["b2"]})
    generator = nn.Sequential(linear, norm, nn.ReLU(), out).train()
    pool = torch.bincount(torch.cat([straight.labels(k) for k in range(3)]), minlength=10).double()

    def batch(stream):
        y = torch.multinomial(pool, 16, replacement=True, generator=stream)
        return torch.cat([torch.rand(16, 4, generator=stream), F.one_hot(y, 10).float()], 1), y

    shared = copy.deepcopy(straight.heads[0])
    for round_ in (1, 2):
        for number in range(3):
            straight.put_head(number, shared)
            stream = straight.streams.torch("fedgen", round_=round_, client=number)

            def loss(features, logits, labels, number=number, stream=stream):
                z, y = batch(stream)
                extra = F.cross_entropy(straight.heads[number](generator(z).detach()), y)
                return F.cross_entropy(logits, labels) + 0.5 * extra

            straight.train(number, round_, loss)
        adam = torch.optim.Adam(generator.parameters(), 0.1)
        stream = straight.streams.torch("fedgen_server", round_=round_)
        for _ in range(5):
            z, y = batch(stream)
            pairs = zip(straight.heads, straight.shares(), strict=True)
            logits = sum(share * head(generator(z)) for head, share in pairs)
            adam.zero_grad()
            F.cross_entropy(logits, y).backward()
            adam.step()
        shared = straight.mean_head()
    straight.assert_same(done)
    for name, value in shared.state_dict().items():
        torch.testing.assert_close(done.servers[-1]["head"][name], value, atol=1e-5, rtol=0)


def loss_of(state, method, heads) -> float:
    """Eq. (4) on a large batch."""
    labels = draw_labels(method._summed_counts(state), 500, seeded())
    noise = torch.rand(500, method.hp.noise_dim, generator=seeded(1))
    stacked = {name: torch.stack([h.head[name] for h in heads.values()]) for name in state["head"]}
    shares = torch.tensor([0.5, 0.5])
    features = generated_features(state["generator"], noise, labels)
    return float(ensemble_loss(features, labels, stacked, shares))


def server_step(assemble, **hparams):
    """Method, state before and after a server step, and the heads that it was made of."""
    changes = {f"algorithm.{key}": value for key, value in hparams.items()}
    assembly = assemble("fedgen", {**FEW, **changes})
    method, server = assembly.algorithm, assembly.server(CPU)
    counts = {"0": torch.tensor([30, 10, *[0] * 8])}
    before = {**method.init_server(server), "counts": counts}
    heads = {
        k: Head({"weight": torch.randn(10, 16, generator=seeded(k)), "bias": torch.zeros(10)}, 20)
        for k in (0, 2)
    }
    return method, before, method.server_update(before, heads, replace(server, round=1)), heads


def test_the_generator_learns_what_the_heads_take_for_each_class(assemble):
    method, before, after, heads = server_step(assemble, server_epochs=40)
    assert loss_of(after, method, heads) < 0.3 * loss_of(before, method, heads)
    # classes that nobody has are never generated, so nothing is learnt of them
    assert torch.equal(after["generator"]["w1"][:, 6:], before["generator"]["w1"][:, 6:])
    assert not torch.equal(after["generator"]["w1"][:, :6], before["generator"]["w1"][:, :6])


def test_equal_weights_are_the_papers(assemble):
    assembly = assemble("fedgen", {**FEW, "algorithm.weights": "uniform"})
    method, server = assembly.algorithm, assembly.server(CPU)
    state = {**method.init_server(server), "counts": {"0": torch.ones(10, dtype=torch.int64)}}
    full = {k: torch.full((10, 16), float(k)) for k in (1, 3)}
    heads = {k: Head({"weight": full[k], "bias": torch.zeros(10)}, 10 * k) for k in (1, 3)}
    after = method.server_update(state, heads, server)
    assert after["head"]["weight"].unique().tolist() == [2.0]


def test_the_official_repositorys_generator_stays_as_it_was_drawn(run):
    fixed, official = (run("fedgen", {**FEW, "algorithm.untrained": u}) for u in (False, True))
    drawn = official.servers[0]["generator"]
    assert all(same(state["generator"], drawn) for state in official.servers)
    assert same(fixed.servers[0]["generator"], drawn)
    assert not any(same(state["generator"], drawn) for state in fixed.servers[1:])
    assert not fixed.same_clients_as(official)


def test_newcomers_are_counted_when_they_join(run):
    join = {"join.clients": 1, "join.round": 2, "rounds": 3}
    done = run("fedgen", {**FEW, **join})
    assert [sorted(state["counts"]) for state in done.servers] == [
        ["0", "1", "2"], ["0", "1", "2"], ["0", "1", "2", "3"], ["0", "1", "2", "3"],
    ]  # fmt: skip
    labels, train = done.assembly.data.images.labels, done.assembly.data.train
    for client, counts in done.servers[-1]["counts"].items():
        own = torch.tensor(labels[train[int(client)]])
        assert torch.equal(counts, torch.bincount(own, minlength=10))


def test_batches_of_one_cannot_be_normalised(assemble):
    assembly = assemble("fedgen", {"batch_size": 1})
    with pytest.raises(
        UserError, match="uses batch normalisation, but batch_size=1; set batch_size"
    ):
        assembly.algorithm.init_server(assembly.server(CPU))
    plain = assemble("fedgen", {"batch_size": 1, "algorithm.generated_weight": 0})
    assert "generator" in plain.algorithm.init_server(plain.server(CPU))


def test_the_generator_starts_like_the_layers_it_stands_for(assemble):
    assembly = assemble("fedgen")
    generator = assembly.algorithm.init_server(assembly.server(CPU))["generator"]
    assert generator["w1"].shape == (512, 42)
    for name, inputs in (("w1", 42), ("b1", 42), ("w2", 512), ("b2", 512)):
        assert 0.8 * inputs**-0.5 < float(generator[name].abs().max()) <= inputs**-0.5
    assert FedGen.HParams().server_lr == 0.1
