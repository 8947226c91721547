"""Methods that distil: equations by hand, plain loops, and what a run does."""

from __future__ import annotations

import copy
from math import cos, log, pi

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference import THREE, ReferenceClients, set_parameters, weighted_mean
from tensors import CPU, gaussian, same
from torch import nn

from fedray.algorithms.distillation.fedgen import FedGen
from fedray.algorithms.distillation.fedkd import (
    adaptive_loss,
    energy,
    energy_rank,
    factorise,
    restore,
)
from fedray.algorithms.losses import kl_divergence
from fedray.models import buffer_names
from fedray.runtime.groups import GroupRunner

# --- FedGen as a straight loop, its counts and its start -----------------------------------------

FEW = {"algorithm.server_epochs": 5, "algorithm.hidden_dim": 24, "algorithm.noise_dim": 4}


def test_fedgen_eq4_eq5_two_rounds_agree_with_a_straight_loop(run):
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


def test_fedgen_newcomers_are_counted_when_they_join(run):
    join = {"join.clients": 1, "join.round": 2, "rounds": 3}
    done = run("fedgen", {**FEW, **join})
    assert [sorted(state["counts"]) for state in done.servers] == [
        ["0", "1", "2"], ["0", "1", "2"], ["0", "1", "2", "3"], ["0", "1", "2", "3"],
    ]  # fmt: skip
    labels, train = done.assembly.data.images.labels, done.assembly.data.train
    for client, counts in done.servers[-1]["counts"].items():
        own = torch.tensor(labels[train[int(client)]])
        assert torch.equal(counts, torch.bincount(own, minlength=10))


def test_fedgen_without_its_term_batches_of_one_are_allowed(assemble):
    plain = assemble("fedgen", {"batch_size": 1, "algorithm.generated_weight": 0})
    assert "generator" in plain.algorithm.init_server(plain.server(CPU))


def test_fedgen_the_generator_starts_like_the_layers_it_stands_for(assemble):
    assembly = assemble("fedgen")
    generator = assembly.algorithm.init_server(assembly.server(CPU))["generator"]
    assert generator["w1"].shape == (512, 42)
    for name, inputs in (("w1", 42), ("b1", 42), ("w2", 512), ("b2", 512)):
        assert 0.8 * inputs**-0.5 < float(generator[name].abs().max()) <= inputs**-0.5
    assert FedGen().server_lr == 0.1


# --- FedKD by hand: adaptive losses, ranks, factors, and the mean of the updates -----------------


def test_fedkd_the_adaptive_loss_by_hand():
    task, other, distance = (torch.tensor(x, requires_grad=True) for x in (1.0, 2.0, 0.6))
    loss = adaptive_loss(task, other, distance)
    assert loss.item() == pytest.approx(1.2)
    loss.backward()
    assert float(distance.grad) == pytest.approx(1 / 3)
    assert float(task.grad) == pytest.approx(1 - 0.6 / 9)
    zero = torch.tensor(0.0)
    assert float(adaptive_loss(zero, zero, zero)) == 0.0  # not 0/0


def test_fedkd_the_first_round_has_the_first_energy(assemble):
    """The squares of the singular values are 16, 9 and 1; round 2 of 2 is half-way to all."""
    keys = {"rounds": 2, "algorithm.energy_start": 0.5, "algorithm.energy_end": 1.0}
    method = assemble("fedkd", keys).algorithm
    update = torch.diag(torch.tensor([4.0, 3.0, 1.0, *[0.0] * 9]))
    ranks = [len(method.factors(update, round_)["s"]) for round_ in (0, 1, 2)]
    assert ranks == [1, 1, 2]


@pytest.mark.parametrize(("done", "expected"), [(0, 0.5), (0.25, 0.6), (1, 0.9)])
def test_fedkd_the_energy_rises_linearly(done, expected):
    assert energy(0.5, 0.9, done) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.6, 1), (0.7, 2), (0.84, 3), (0.99, 3), (1.0, 3)]
)
def test_fedkd_the_smallest_rank_with_enough_energy_by_hand(share, expected):
    assert energy_rank(torch.tensor([2.0, 1.0, 1.0]), share) == expected  # 4/6, 5/6, 6/6


def test_fedkd_a_flat_spectrum_needs_the_full_rank_not_none():
    assert energy_rank(torch.ones(10), 0.95) == 10
    assert energy_rank(torch.ones(1), 0.95) == 1  # a 1x1 kernel


def test_fedkd_factors_hold_the_energy_and_are_smaller():
    matrix = gaussian(20, 2) @ gaussian(2, 30, seed=1)
    found = factorise(matrix, 1 - 1e-6)
    assert {n: tuple(t.shape) for n, t in found.items()} == {"u": (20, 2), "s": (2,), "v": (2, 30)}
    torch.testing.assert_close(restore(found), matrix, atol=1e-4, rtol=1e-4)
    noisy = matrix + 0.3 * gaussian(20, 30, seed=2)
    for share in (0.5, 0.8, 0.95):
        lost = noisy - restore(factorise(noisy, share))
        assert float(lost.square().sum()) < (1 - share) * float(noisy.square().sum())


def test_fedkd_a_convolution_is_factorised_as_one_matrix():
    layer = (gaussian(6, 1) @ gaussian(1, 100, seed=1)).reshape(6, 4, 5, 5)
    found = factorise(layer, 0.9999)
    assert [tuple(t.shape) for t in found.values()] == [(6, 1), (1,), (1, 100)]
    torch.testing.assert_close(restore(found), layer.flatten(1), atol=1e-4, rtol=1e-4)
    assert torch.equal(restore(factorise(layer, None)), layer.flatten(1))


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(5.0), torch.zeros(8, 8), torch.eye(10), gaussian(4, 3, 1, 1)],
    ids=["vector", "zero", "flat", "1x1 kernels"],
)
def test_fedkd_what_factors_would_not_make_smaller_travels_whole(tensor):
    assert torch.equal(factorise(tensor, 0.99)["whole"], tensor)
    assert list(factorise(tensor, None)) == ["whole"]


# --- FML: its divergence in half precision, its bound on gradients, and the official code's keys

LOGITS = torch.tensor([[log(3), 0.0], [0.0, 0.0]])  # 3/4 and 1/4; halves
TEACHER = torch.tensor([[0.0, 0.0], [log(3), 0.0]])


def test_fml_kl_is_in_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        found = kl_divergence(LOGITS.bfloat16(), TEACHER.bfloat16())
    assert found.dtype == torch.float32


def test_fml_gradients_of_each_model_are_clipped_to_the_bound(assemble):
    keys = {"batch_size": 1000, "algorithm.clip_norm": 1e-3}
    assembly = assemble("fml", keys)
    method, server = assembly.algorithm, assembly.server(CPU)
    client = GroupRunner(assembly, CPU).client(1, 1)
    state = method.init_client(client)
    down = method.downlink(method.init_server(server), [1], server)[1]
    sent, kept = method.client_update(client, state, down)
    for before, after in ((state.model, kept.model), (down.model, sent["model"])):
        moved = torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()
        assert float(moved) == pytest.approx(0.05 * 1e-3, rel=1e-3)  # one step of lr 0.05


@pytest.mark.parametrize("method", ["fml", "fedkd", "fedmrl"])
def test_fml_the_official_code_is_a_preset(assemble, method):
    assembly = assemble(method, {"algorithm.preset": "official_code", "batch_size": 8})
    found, training = assembly.algorithm, assembly.setting.training
    assert (found.clip_norm, found.weights) == (10, "uniform")
    assert (training.shuffle, training.drop_last) == (False, True)
    if method == "fedmrl":
        assert found.official_bug
    else:
        assert (found.kl, found.teacher_gradients) == ("entries", True)
    assert getattr(found, "compress", False) is False


# --- FedMRL: the width of the small model --------------------------------------------------------


def test_fedmrl_the_small_models_width(assemble):
    assert assemble("fedmrl", {"model.feature_dim": 512}).algorithm.auxiliary_dim() == 128
    assert assemble("fedmrl", {"algorithm.small_dim": 16}).algorithm.auxiliary_dim() == 16


# --- FedMD: Algorithm 1 as a straight loop -------------------------------------------------------

FEDMD_FEW = {"algorithm.public_epochs": 1, "algorithm.private_epochs": 1}


def batches(images, targets, stream, size):
    """The batches of an epoch in the order of a run; a single last image joins the batch before."""
    chunks = list(torch.randperm(len(images), generator=stream).split(size))
    if len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return [(images[chunk], targets[chunk]) for chunk in chunks]


@pytest.mark.parametrize("digest", ["l1", "kl"])
def test_fedmd_algorithm_1_as_a_straight_loop(run, digest):
    keys = {"algorithm.alignment": 20, "algorithm.digest_batch_size": 8}
    keys |= {"algorithm.temperature": 3, "algorithm.digest": digest, "local_epochs": 1}
    done = run("fedmd", {**THREE, **FEDMD_FEW, **keys})
    straight, data = ReferenceClients(done), done.assembly.data
    public = data.public.index
    images = torch.from_numpy(data.images.images[public]).float() * (2 / 255) - 1
    labels = torch.from_numpy(data.images.labels[public])

    def scores(k, x):
        return straight.heads[k](straight.bodies[k](x))

    def epoch(k, order, round_, x, y, size, loss):
        sgd = torch.optim.SGD(straight.parameters(k), 0.05)
        stream = straight.streams.torch(order, round_=round_, client=k)
        for inputs, targets in batches(x, y, stream, size):
            sgd.zero_grad()
            loss(scores(k, inputs), targets).backward()
            sgd.step()

    def distance(found, wanted):
        if digest == "l1":
            return (found - wanted).abs().mean()
        p, q = F.softmax(wanted / 3, 1), F.log_softmax(found / 3, 1)
        return 9 * (p * (p.log() - q)).sum(1).mean()

    own = [(client.images, client.labels) for client in straight.clients]
    for k in range(3):
        epoch(k, "public", 0, images, labels, 16, F.cross_entropy)
        epoch(k, "private", 0, *own[k], 16, F.cross_entropy)
    for round_ in (1, 2):
        drawn = straight.streams.numpy("fedmd", round_=round_).permutation(len(public))[:20]
        aligned = images[torch.from_numpy(drawn)]
        with torch.no_grad():
            mean = sum(scores(k, aligned) for k in range(3)) / 3
        for k in range(3):
            epoch(k, "digest", round_, aligned, mean, 8, distance)
            epoch(k, "batches", round_, *own[k], 16, F.cross_entropy)
    straight.assert_same(done)


def test_fedmd_a_client_that_joins_later_begins_with_transfer_learning(run):
    done = run("fedmd", {**FEDMD_FEW, "join.clients": 1, "join.round": 2, "rounds": 2})
    given = [server["given"]["transfer"].tolist() for server in done.servers]
    assert given == [[0, 0, 0, -1], [0, 0, 0, -1], [0, 0, 0, 0]]


def test_fedmd_scores_of_public_images_are_all_that_travels(run):
    done = run("fedmd", {**FEDMD_FEW, "algorithm.alignment": 7})
    assert done.results[1].up.params == {"logits": 4 * 7 * 10, "statistics": 4}
    assert done.results[1].down.params == {"logits": 4 * 7 * 10, "statistics": 4}
    assert np.isfinite(done.results[-1].metrics["local_accuracy"])


# --- FedDF by hand: the ensemble's logits, the student's steps, means inside architectures -------

SMALL = {"algorithm.server_epochs": 2, "algorithm.server_batch_size": 16}


def test_feddf_algorithm_3_as_a_straight_loop(run):
    keys = {**SMALL, "algorithm.temperature": 2, "algorithm.clip": 0.5, "local_epochs": 2}
    done = run("feddf", {**THREE, **keys})
    straight, data = ReferenceClients(done), done.assembly.data
    kinds, public = done.assembly.models.architectures, data.public.index
    images = torch.from_numpy(data.images.images[public]).float() * (2 / 255) - 1
    groups = {kind: [k for k in range(3) if kinds[k] == kind] for kind in kinds}
    sizes = {k: len(straight.labels(k)) for k in range(3)}
    modules = [
        torch.nn.Sequential(*pair) for pair in zip(straight.bodies, straight.heads, strict=True)
    ]
    for round_ in (1, 2):
        for k in range(3):
            straight.train(k, round_, lambda _, logits, labels: F.cross_entropy(logits, labels))
        with torch.no_grad():
            teacher = sum(module(images) for module in modules) / 3
        for members in groups.values():
            mean = weighted_mean({k: modules[k] for k in members}, sizes)
            student = modules[members[0]]
            set_parameters(student.parameters(), mean)
            adam = torch.optim.Adam(student.parameters(), 0.001)
            stream = straight.streams.torch("server batches", round_=round_)
            chunks = [
                chunk
                for _ in range(2)
                for chunk in torch.randperm(len(images), generator=stream).split(16)
            ]
            for step, chunk in enumerate(chunks):
                adam.param_groups[0]["lr"] = 0.001 * (1 + cos(pi * step / len(chunks))) / 2
                p = F.softmax(teacher[chunk] / 2, 1)
                q = F.log_softmax(student(images[chunk]) / 2, 1)
                adam.zero_grad()
                F.kl_div(q, p, reduction="batchmean").backward()
                torch.nn.utils.clip_grad_norm_(student.parameters(), 0.5)
                adam.step()
            for k in members[1:]:
                set_parameters(modules[k].parameters(), student.parameters())
    for kind, members in groups.items():
        found = done.servers[-1]["models"][kind]
        for mine, value in zip(modules[members[0]].parameters(), found.values(), strict=True):
            torch.testing.assert_close(mine.detach(), value, atol=2e-5, rtol=0)


def test_feddf_without_steps_it_is_fedavg_inside_each_architecture(run):
    changes = {"model.group": "cnn3"}
    public = {"data.public": {"name": "share", "fraction": 0.2}}
    plain = run("feddf", {**changes, "algorithm.server_epochs": 0})
    fedavg = run("fedavg", {**changes, **public})
    assert same(plain.servers[-1]["models"]["cnn3"], fedavg.servers[-1]["model"])
    taught = run("feddf", {**changes, **SMALL})
    assert not same(plain.servers[-1]["models"]["cnn3"], taught.servers[-1]["models"]["cnn3"])
    buffers = buffer_names(taught.assembly.models.empty("cnn3"))
    assert buffers <= taught.servers[-1]["models"]["cnn3"].keys()


def test_feddf_an_architecture_without_participants_learns_from_the_others(run):
    done = run("feddf", {**SMALL, "participation": 0.25, "rounds": 1, "model.group": "digits"})
    (participant,) = done.results[1].participants
    architectures = done.assembly.models.architectures
    before, after = (server["models"] for server in done.servers)
    assert all(not same(before[name], after[name]) for name in set(architectures))
    assert not done.assembly.algorithm.has_global_model(done.servers[-1])
    assert architectures[participant] in after
