"""Methods that keep a part of each model: equations by hand, and what a run does."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensors import CPU, gaussian, same
from torch import nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.personalised.alignfed import (
    AlignFed,
    alignment_loss,
    schedule,
    spread_targets,
    uniformity,
)
from fedray.algorithms.personalised.fedgh import FedGH
from fedray.algorithms.personalised.fedpac import alignment_targets, head_weights, simplex_minimum
from fedray.algorithms.personalised.pfedme import PFedMe
from fedray.algorithms.prototypes.fedproto import FedProto
from fedray.base.streams import Streams
from fedray.config import validate
from fedray.core import (
    Batch,
    Client,
    ClientState,
    LocalContext,
    Samples,
    Setting,
    Skeleton,
    TrainingConfig,
)
from fedray.models import (
    Classifier,
    ClassifierOutput,
    Pixels,
    build,
    normalisation_tensors,
    tensor_names,
)
from fedray.runtime.groups import GroupRunner

# --- FedBN: what stays and what travels ----------------------------------------------------------

SHAPE = {"channels": 3, "image_size": 32, "num_classes": 10, "feature_dim": 16}


def test_fedbn_shortcuts_have_normalisation_too():
    model = build("resnet18", **SHAPE)
    names = normalisation_tensors(model)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(norms) == 20
    assert len(names) == 5 * len(norms)
    assert any("downsample" in name for name in names)


def test_fedbn_normalisation_never_leaves_a_client_and_the_rest_is_common(run):
    done = run("fedbn", {"model.group": "cnn3", "rounds": 2})
    model = done.assembly.server(torch.device("cpu")).model
    norms = normalisation_tensors(model)
    assert norms
    for state in done.servers:
        assert set(state["model"]) == tensor_names(model) - norms
    for weights in done.models.values():
        assert set(weights) == norms
    key = next(name for name in norms if name.endswith("running_mean"))
    values = {tuple(weights[key].tolist()) for weights in done.models.values()}
    assert len(values) == len(done.models)


# --- FedBABU: the head stays, equal everywhere, and does not travel after the first time ---------

HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize("group", ["cnn2", "cnn3"])
@pytest.mark.parametrize("init", ["shared", "independent"])
def test_fedbabu_every_client_keeps_the_servers_initial_head(run, group, init):
    changes = {"model.group": group, "model.init": init, "rounds": 2, "optimizer.weight_decay": 0.1}
    changes["participation"] = 0.5  # absent clients have it, too
    done = run("fedbabu", changes)
    initial = done.assembly.models.initial(group)
    assert set(done.memories) == {0, 1, 2, 3}
    for memory in done.memories.values():
        assert set(memory["head"]) == HEAD
        assert all(torch.equal(memory["head"][name], initial[name]) for name in HEAD)
    body = done.servers[0]["model"]
    assert all(torch.equal(tensor, initial[name]) for name, tensor in body.items())


# --- FedGH: the batches that its server takes ----------------------------------------------------


def uploads(*classes: int, seed: int = 0) -> FedGH.up:
    vectors = torch.randn(len(classes), 16, generator=torch.Generator().manual_seed(seed))
    return FedGH.up(torch.tensor(classes), vectors)


def test_fedgh_the_server_takes_batches_of_the_clients_size(assemble):
    def head(**changes):
        assembly = assemble("fedgh", changes)
        method, server = assembly.algorithm, assembly.server(CPU)
        uplinks = {0: uploads(1, 4), 2: uploads(4, 5, 6, seed=1)}
        return method.server_update(method.init_server(server), uplinks, server)["head"]

    batches = {size: head(**{"algorithm.server_batch_size": size}) for size in (2, 4, 100)}
    assert same(head(batch_size=2), batches[2])
    assert same(head(batch_size=4), batches[4])
    assert not same(batches[2], batches[100])


# --- FedPAC's targets and its quadratic programme, by hand ---------------------------------------


def gram(k, rank, seed):
    root = gaussian(k, rank, seed=seed).double()
    return root @ root.T


def test_fedpac_targets_are_the_servers_then_the_own_prototypes():
    h, labels = torch.tensor([[1.0, 1.0], [0.5, 0.0], [0.0, 0.0]]), torch.tensor([0, 0, 0, 1])
    server = FedProto.down(torch.full((3, 2), 7.0), torch.tensor([True, False, False]))
    targets = alignment_targets(server, h, labels)
    assert targets.vectors[:2].tolist() == [[7.0, 7.0], [2.0, 0.0]]
    assert targets.present.tolist() == [True, True, False]
    none = FedProto.down(torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool))
    assert not alignment_targets(none, h, labels).present.any()


# the weights of the heads


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize(("k", "rank"), [(2, 2), (6, 3), (12, 12), (40, 60)])
def test_fedpac_the_simplex_minimum_is_optimal(k, rank, scale):
    matrix = gram(k, rank, seed=k) * scale
    a = simplex_minimum(matrix)
    assert float(a.min()) >= 0
    assert float(a.sum()) == pytest.approx(1.0)
    # Karush, Kuhn, Tucker: no vertex goes down, and all that is used is level
    slope = matrix @ a
    value = float(a @ slope)
    tolerance = 1e-9 * float(matrix.trace())
    assert float(slope.min()) >= value - tolerance
    torch.testing.assert_close(
        slope[a > 1e-8], torch.full_like(slope[a > 1e-8], value), rtol=0, atol=tolerance
    )


def test_fedpac_small_weights_go_and_the_others_fill_up():
    alike, variances = torch.zeros(3, 1, 1), torch.tensor([1.0, 1.0, 8.0])
    assert head_weights(alike, variances, 0, 0.0).tolist() == pytest.approx(
        [8 / 17, 8 / 17, 1 / 17]
    )
    assert head_weights(alike, variances, 0, 0.1).tolist() == pytest.approx([0.5, 0.5, 0.0])
    # all are small: all stay
    assert head_weights(alike, torch.ones(3), 0, 0.5).tolist() == pytest.approx([1 / 3] * 3)


# --- LG-FedAvg by hand: averaged heads, personal representations ---------------------------------


@pytest.mark.parametrize("method", ["lg_fedavg", "alignfed"])
def test_lg_fedavg_after_the_broadcast_heads_are_alike_and_extractors_personal(assemble, method):
    few = {"algorithm.target_steps": 1} if method == "alignfed" else {}
    assembly = assemble(method, {"model.init": "independent", **few})
    method, server = assembly.algorithm, assembly.server(CPU)
    state = method.init_server(server)
    down = method.downlink(state, range(4), server)
    runtime = GroupRunner(assembly, CPU)
    for number in range(4):
        client = runtime.client(number, 1)
        kept = method.init_client(client)
        loaded = method.begin(client, kept, down[number]).model.state_dict()
        assert same({n: loaded[f"head.{n}"] for n in ("weight", "bias")}, state["head"])
        own = same({n: kept.model[f"head.{n}"] for n in ("weight", "bias")}, state["head"])
        assert own == (method.name == "lg_fedavg" and number == 0)  # the first client's
        for name in kept.model:
            assert name.startswith("head.") or torch.equal(loaded[name], kept.model[name])


def test_lg_fedavg_the_first_head_is_the_first_clients(assemble):
    assembly = assemble("lg_fedavg")
    first = assembly.models.initial(assembly.models.architectures[0], 0)
    found = assembly.algorithm.init_server(assembly.server(CPU))
    assert same(found["head"], {"weight": first["head.weight"], "bias": first["head.bias"]})


# --- pFedMe: the personal model of a quadratic, the outer step, the server's step ----------------

H = torch.tensor([[3.0, 1.0], [1.0, 2.0]])
B = torch.tensor([1.0, -2.0])
W = torch.tensor([4.0, -1.0])


class Point(Classifier):
    """Two parameters."""

    head = nn.Identity()

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return ClassifierOutput(self.p, self.p)


class Quadratic(PFedMe):
    """f(p) = p^T H p / 2 - b^T p on every batch."""

    def loss(self, output, batch, local):
        return output.logits @ H @ output.logits / 2 - B @ output.logits


def step(images: int = 1, lr: float = 0.02, **hparams):
    """A client's step from W: what it sends of w, and its theta."""
    training = TrainingConfig(epochs=1, batch_size=2, lr=lr)
    setting = Setting(("a",), 2, 1, 1, training, Streams(0))
    data = Samples(np.zeros((images, 2), np.float32), np.zeros(images, np.int64), np.arange(images))
    client = Client(0, 1, setting, data, "point", Skeleton(Point()), dict, torch.device("cpu"))
    method = Quadratic(**hparams).with_setting(setting)
    sent, state = method.client_update(client, ClientState({}), FedAvg.down({"p": W.clone()}))
    assert sent["samples"] == images
    return sent["model"]["p"], state.model["p"]


def test_pfedme_inner_steps_end_at_the_proximal_point_and_the_outer_step_goes_towards_it():
    lambda_, eta = 15.0, 0.005
    sent, theta = step(inner_steps=400, lambda_=lambda_, eta=eta)
    fixed_point = torch.linalg.solve(H + lambda_ * torch.eye(2), B + lambda_ * W)
    torch.testing.assert_close(theta, fixed_point, rtol=1e-5, atol=0)
    torch.testing.assert_close(sent, W - eta * lambda_ * (W - fixed_point), rtol=1e-5, atol=0)


def test_pfedme_one_inner_step_is_one_gradient_step():
    sent, theta = step(inner_steps=1, eta=1 / 15)
    torch.testing.assert_close(theta, W - 0.02 * (H @ W - B))  # theta = w, so nothing holds it
    torch.testing.assert_close(sent, theta)  # eta lambda = 1


@pytest.mark.parametrize(("beta", "expected"), [(1.0, 6.0), (0.5, 4.0), (2.0, 10.0)])
def test_pfedme_the_server_goes_beta_of_the_way_to_the_plain_mean(beta, expected):
    method = PFedMe(beta=beta)
    uplinks = {
        0: FedAvg.up({"p": torch.tensor(4.0), "v": torch.tensor(1.0)}, 30),
        1: FedAvg.up({"p": torch.tensor(8.0), "v": torch.tensor(3.0)}, 10),
    }
    state = {"model": {"p": torch.tensor(2.0), "v": torch.tensor(9.0)}}
    model = torch.nn.Module()
    model.register_buffer("v", torch.tensor(0.0))
    server = SimpleNamespace(model=model)
    after = method.server_update(state, uplinks, server)
    assert after["model"]["p"].item() == pytest.approx(expected)
    assert after["model"]["v"].item() == pytest.approx(2.0)  # a running variance stays positive


def test_pfedme_personal_models_are_tested_and_only_the_global_one_travels(run):
    hparams = {"algorithm.lambda": 1, "algorithm.eta": 0.5}
    changes = {"model.group": "cnn2", "participation": 0.5, "lr": 0.3, "rounds": 4}
    runs = [
        run("pfedme", {**changes, **hparams, "algorithm.test": t}) for t in ("personal", "global")
    ]
    personal, common = (done.servers[-1]["model"] for done in runs)
    assert same(personal, common)
    client = runs[0].results[1].participants[0]
    theta = runs[0].models[client]
    assert not torch.equal(theta["head.weight"], common["head.weight"])
    for done, tested in zip(runs, (theta, common), strict=True):
        method, runtime = done.assembly.algorithm, GroupRunner(done.assembly, CPU)
        down = method.downlink(done.servers[-1], [client], done.assembly.server(CPU))[client]
        state = ClientState(done.models.get(client, {}))
        loaded = method.begin(runtime.client(client, 4), state, down).model.state_dict()
        assert torch.equal(loaded["head.weight"], tested["head.weight"])


# --- AlignFed by hand: targets, schedule, alignment, averaged heads ------------------------------

FEW = {"algorithm.target_steps": 5}


def test_alignfed_uniformity_by_hand():
    points = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    a, b, c = exp(1 / 0.5), exp(0), exp(-1 / 0.5)
    expected = (2 * log(a + b + c) + log(a + 2 * b)) / 3
    assert float(uniformity(points, 0.5)) == pytest.approx(expected)


@pytest.mark.parametrize(("classes", "d"), [(4, 3), (5, 8), (10, 16)])
def test_alignfed_targets_become_a_simplex(classes, d):
    targets = spread_targets(gaussian(classes, d), 2000, 0.5)
    torch.testing.assert_close(targets.norm(dim=1), torch.ones(classes))
    cosines = targets @ targets.T
    others = cosines[~torch.eye(classes, dtype=torch.bool)]
    torch.testing.assert_close(
        others, torch.full_like(others, -1 / (classes - 1)), atol=5e-3, rtol=0
    )


def test_alignfed_targets_spread_in_fewer_dimensions_than_a_simplex_needs():
    start = F.normalize(gaussian(6, 2))
    assert float(uniformity(spread_targets(start, 500, 0.5), 0.5)) < float(uniformity(start, 0.5))


def test_alignfed_schedule_over_the_rounds(assemble):
    assembly = assemble("alignfed", {"rounds": 10, **FEW})
    method, server = assembly.algorithm, assembly.server(CPU)
    state = method.init_server(server)

    def weight(round_):
        return method.downlink(state, [0], replace(server, round=round_))[0].weight

    assert weight(0) == weight(1) == pytest.approx(20)
    assert weight(6) == pytest.approx(6.325, abs=5e-4)
    assert weight(10) == pytest.approx(2 * 10**0.1)


def test_alignfed_a_schedule_from_0_to_0_is_off():
    off = validate(AlignFed, {"lambda_start": 0, "lambda_end": 0}, "algorithm")
    assert schedule(off.lambda_start, off.lambda_end, 0.5) == 0


LOGITS = torch.tensor([[0.5, -1.0, 0.0], [0.25, 1.0, 0.0]])


def test_alignfed_alignment_over_classes_by_hand():
    first = -log(exp(0.5) / (exp(0.5) + exp(-1) + 1))
    second = -log(exp(1) / (exp(0.25) + exp(1) + 1))
    found = alignment_loss(LOGITS, torch.tensor([0, 1]), "class")
    assert float(found) == pytest.approx((first + second) / 2)


def test_alignfed_alignment_over_the_batch_by_hand():
    first = -log(exp(0.5) / (exp(0.5) + exp(0.25)))
    second = -log(exp(1) / (exp(-1) + exp(1)))
    # the third class has no sample and counts as 0 of 3
    found = alignment_loss(LOGITS, torch.tensor([0, 1]), "batch")
    assert float(found) == pytest.approx((first + second) / 3, rel=1e-5)
    # two samples of one class are averaged
    both = -log(exp(0.25) / (exp(0.5) + exp(0.25)))
    found = alignment_loss(LOGITS, torch.tensor([0, 0]), "batch")
    assert float(found) == pytest.approx((first + both) / 2 / 3, rel=1e-5)


def test_alignfed_the_local_loss_by_hand(assemble):
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


def test_alignfed_extractors_stay_personal_heads_meet_and_targets_are_kept(run):
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
