"""FedGen as a straight loop, its counts and its start."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from reference import THREE, ReferenceClients
from tensors import CPU
from torch import nn

from fedray.algorithms.distillation.fedgen import (
    FedGen,
)

FEW = {"algorithm.server_epochs": 5, "algorithm.hidden_dim": 24, "algorithm.noise_dim": 4}


def test_eq4_eq5_two_rounds_agree_with_a_straight_loop(run):
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


def test_without_its_term_batches_of_one_are_allowed(assemble):
    plain = assemble("fedgen", {"batch_size": 1, "algorithm.generated_weight": 0})
    assert "generator" in plain.algorithm.init_server(plain.server(CPU))


def test_the_generator_starts_like_the_layers_it_stands_for(assemble):
    assembly = assemble("fedgen")
    generator = assembly.algorithm.init_server(assembly.server(CPU))["generator"]
    assert generator["w1"].shape == (512, 42)
    for name, inputs in (("w1", 42), ("b1", 42), ("w2", 512), ("b2", 512)):
        assert 0.8 * inputs**-0.5 < float(generator[name].abs().max()) <= inputs**-0.5
    assert FedGen().server_lr == 0.1
