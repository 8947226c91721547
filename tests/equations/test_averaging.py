"""Methods that average whole models: equations by hand, plain loops, and what a run does."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from reference import (
    ReferenceClient,
    assert_close,
    body,
    initial_model,
    set_parameters,
    supervised,
    weighted_mean,
)
from tensors import CPU, same
from torch import nn

from fedray.algorithms.averaging.fedavg import ExtraParameters, FedAvg
from fedray.algorithms.averaging.fedetf import corner_products, simplex_etf
from fedray.algorithms.averaging.fedlc import calibrate
from fedray.algorithms.averaging.fednova import FedNova, effective_steps, normalised_average
from fedray.algorithms.averaging.moon import features_under
from fedray.algorithms.averaging.scaffold import Scaffold
from fedray.algorithms.losses import proximal_term
from fedray.base.errors import ServerError
from fedray.core import ClientState, LocalContext, Privacy
from fedray.models import ClassifierOutput, Pixels, build
from fedray.runtime.groups import GroupRunner

# --- FedAvg: running statistics, noise, and what a plug-in may forget ----------------------------

ONE_KIND = {"model.group": "cnn2"}


def mean_model(uplinks):
    method = FedAvg()
    return method.server_update({"model": uplinks[0].model}, uplinks, None)["model"]


def test_fedavg_running_statistics_are_averaged_and_counters_take_the_maximum():
    uplinks = {
        client: FedAvg.up(
            model={
                "running_mean": torch.tensor([mean]),
                "num_batches_tracked": torch.tensor(steps),
            },
            samples=1,
        )
        for client, mean, steps in [(0, 2.0, 7), (1, 4.0, 9), (2, 6.0, 3)]
    }
    found = mean_model(uplinks)
    assert found["running_mean"].tolist() == pytest.approx([4.0])
    assert found["num_batches_tracked"].dtype == torch.int64
    assert int(found["num_batches_tracked"]) == 9


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "fedproto_global"])
def test_fedavg_noise_reaches_every_parameter_and_no_buffer(run, method):
    changes = {"model.group": "cnn3", "rounds": 1}
    wire = {"privacy.mode": "local", "privacy.clip_norm": 1.0, "privacy.noise_multiplier": 0.1}
    quiet = run(method, changes).servers[1]["model"]
    loud = run(method, {**changes, **wire}).servers[1]["model"]
    for name, tensor in quiet.items():
        statistic = "running" in name or name.endswith("num_batches_tracked")
        assert torch.equal(loud[name], tensor) == statistic, name


def test_fedavg_a_misspelt_shared_tensor_is_not_left_out_without_a_word(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "shared", lambda self, model: {"haed.weight", "head.bias"})
    with pytest.raises(ServerError, match=r"FedAvg.shared: .* haed.weight"):
        run("fedavg", ONE_KIND)


def test_fedavg_a_field_of_the_download_that_the_server_state_lacks_is_named(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "down", Scaffold.down)
    with pytest.raises(ServerError, match="KeyError: 'control'"):
        run("fedavg", ONE_KIND)


def test_fedavg_a_client_that_keeps_its_model_still_begins_with_the_global_one(run, monkeypatch):
    changes = {"rounds": 3, "model.group": "mlp"}
    expected = run("fedavg", changes).servers[-1]["model"]
    finish = FedAvg.finish

    def keeping(self, local, trained):
        upload, _ = finish(self, local, trained)
        return upload, ClientState(local.client.save(local.model))

    monkeypatch.setattr(FedAvg, "finish", keeping)
    assert same(run("fedavg", changes).servers[-1]["model"], expected)


# --- FedProx's term by hand, and what it does to a run -------------------------------------------


def test_fedprox_eq2_the_term_by_hand_is_squared():
    line = torch.nn.Linear(2, 1)
    with torch.no_grad():
        line.weight.copy_(torch.tensor([[3.0, 4.0]]))
        line.bias.fill_(2.0)
    w0 = {"weight": torch.zeros(1, 2), "bias": torch.tensor([1.0])}
    assert proximal_term(line, w0, 0.5).item() == pytest.approx(0.5 / 2 * (9 + 16 + 1))


# --- FedLC's margins by hand ---------------------------------------------------------------------


def test_fedlc_tau_scales_the_margin_and_a_missing_class_has_one_of_100():
    margins = -calibrate(torch.zeros(1, 3), torch.tensor([0, 1, 16]), 0.5)
    torch.testing.assert_close(margins, torch.tensor([[50.0, 0.5, 0.25]]))


# --- FedNova's normalised average by hand, and where it is FedAvg --------------------------------


def test_fednova_unequal_steps_do_not_pull_by_hand():
    uplinks = {
        0: FedNova.up({"w": torch.tensor([-1.0])}, 1, 1.0),
        1: FedNova.up({"w": torch.tensor([3.0])}, 1, 3.0),
    }
    method = FedNova()
    server = SimpleNamespace(model=torch.nn.Module())
    found = method.server_update({"model": {"w": torch.zeros(1)}}, uplinks, server)["model"]
    assert found["w"].item() == pytest.approx(0.0, abs=1e-6)  # FedAvg: +1


def test_fednova_the_normalised_average_by_hand():
    x, trained = {"w": torch.tensor([2.0])}, {"w": torch.tensor([0.5]).double()}
    found = normalised_average(x, 3.0, 0.75, trained)
    assert found["w"].item() == 2 - 3 * (2 * 0.75 - 0.5)


def test_fednova_running_statistics_are_averaged_as_in_fedavg(run):
    changes = {"model.group": "cnn3", "rounds": 1, "data.partition.alpha": 0.2}
    nova, plain = run("fednova", changes), run("fedavg", changes)
    for name, tensor in plain.servers[1]["model"].items():
        if "running" in name or "num_batches" in name:
            assert torch.equal(nova.servers[1]["model"][name], tensor)


def test_fednova_effective_steps_are_torchs_own_sums():
    """K steps on the loss w move w by lr times a_i."""
    for momentum, nesterov in ((0.0, False), (0.6, False), (0.6, True)):
        w = torch.zeros(1, requires_grad=True)
        sgd = torch.optim.SGD([w], 1.0, momentum=momentum, nesterov=nesterov)
        for steps in range(1, 6):
            sgd.zero_grad()
            w.sum().backward()
            sgd.step()
            expected = effective_steps(steps, momentum, nesterov=nesterov)
            assert -w.item() == pytest.approx(expected, rel=1e-6)


# --- SCAFFOLD as a straight loop, and what its server divides by ---------------------------------

LR = 0.05


def straight_loop(done, lr_server):
    """SCAFFOLD from the paper, on the images, initial weights and batches of a run.

    Yields x, c, and the mean loss of the participants' last epochs after every round.
    """
    clients = [ReferenceClient(done.assembly, number) for number in range(4)]
    model = initial_model(done.assembly, "cnn2")
    parameters = list(model.parameters())
    x = [w.detach().clone() for w in parameters]
    c = [torch.zeros_like(w) for w in x]
    controls = dict.fromkeys(range(4), c)
    for result in done.results[1:]:
        steps, moves, losses = [], [], []
        for client in result.participants:
            c_i = controls[client]
            set_parameters(parameters, x)

            def correct(c_i=c_i, c=c):
                for w, server, mine in zip(parameters, c, c_i, strict=True):
                    w.grad += server - mine

            sgd = torch.optim.SGD(parameters, LR)
            taken = clients[client].train(
                result.round, supervised(model), sgd, epochs=2, before_step=correct
            )
            step = [y.detach() - w for y, w in zip(parameters, x, strict=True)]
            move = [-server - y / (LR * len(taken)) for server, y in zip(c, step, strict=True)]
            controls[client] = [old + m for old, m in zip(c_i, move, strict=True)]
            steps.append(step)
            moves.append(move)
            sizes = [len(labels) for _, labels in clients[client].batches(result.round)]
            last = zip(taken[len(taken) // 2 :], sizes, strict=True)
            losses.append(sum(loss * size for loss, size in last) / sum(sizes))
        x = [w + lr_server * sum(each) / len(steps) for w, *each in zip(x, *steps, strict=True)]
        c = [w + sum(each) / 4 for w, *each in zip(c, *moves, strict=True)]
        yield x, c, sum(losses) / len(losses)


@pytest.mark.parametrize("lr_server", [1.0, 0.5])
def test_scaffold_eq3_eq4_eq5_three_rounds_agree_with_a_straight_loop(run, lr_server):
    """Two of four clients take part in a round; the reported training loss is a loss."""
    changes = {"rounds": 3, "participation": 0.5, "local_epochs": 2, "lr": LR}
    done = run("scaffold", {**ONE_KIND, **changes, "algorithm.lr_server": lr_server})
    rounds = zip(done.servers[1:], done.results[1:], straight_loop(done, lr_server), strict=True)
    for server, result, (x, c, loss) in rounds:
        for name, w, variate in zip(server["control"], x, c, strict=True):
            torch.testing.assert_close(server["model"][name], w, rtol=0, atol=2e-5)
            torch.testing.assert_close(server["control"][name], variate, rtol=0, atol=2e-4)
        assert result.metrics["train_loss"] == pytest.approx(loss, abs=1e-5)


def test_scaffold_eq5_divides_by_all_clients_not_by_those_that_took_part(assemble):
    method = assemble("scaffold", ONE_KIND).algorithm
    uplinks = {
        client: Scaffold.up({"w": torch.tensor([w])}, 9, {"w": torch.tensor([moved])})
        for client, w, moved in [(0, 2.0, 4.0), (3, 6.0, 8.0)]
    }
    state = {"model": {"w": torch.tensor([1.0])}, "control": {"w": torch.tensor([0.5])}}
    after = method.server_update(state, uplinks, None)
    assert after["model"]["w"].tolist() == [4.0]
    assert after["control"]["w"].tolist() == [0.5 + (4.0 + 8.0) / 4]  # N = 4, |S| = 2


def test_scaffold_clipping_measures_the_change_of_the_variate_from_zero():
    down = Scaffold.down({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])})
    small = Scaffold.up({"w": torch.tensor([1.3])}, 9, {"w": torch.tensor([0.4])})
    assert Privacy("central", 0.5, 0.0).clipped(small, down) is small
    clipped = Privacy("central", 0.05, 0.0).clipped(small, down)
    torch.testing.assert_close(clipped.model["w"], torch.tensor([1.03]))
    torch.testing.assert_close(clipped.change["w"], torch.tensor([0.04]))


def test_scaffold_eq4_divides_by_the_rounds_learning_rate(run):
    """K eta is that of the round: a warm-up's first control is that of a run with its rate."""
    warm_up = {"name": "constant", "warmup_rounds": 1, "warmup_lr": 0.02}
    warmed = run("scaffold", {**ONE_KIND, "rounds": 2, "lr": 0.1, "lr_schedule": warm_up})
    slow = run("scaffold", {**ONE_KIND, "rounds": 1, "lr": 0.02})
    found, expected = (done.servers[1]["control"] for done in (warmed, slow))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


# --- MOON as a straight loop, and what clients remember ------------------------------------------

SOME = {
    "model.group": "mlp",
    "data.clients": 4,
    "participation": 0.5,
    "rounds": 4,
    "local_epochs": 2,
}


def test_moon_frozen_features_leave_the_model_alone():
    shape = {"channels": 1, "image_size": 8, "num_classes": 10, "feature_dim": 16}

    def model(seed):
        return build("cnn3", **shape, generator=torch.Generator().manual_seed(seed))

    one, other = model(0), model(1)
    before = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    x = Pixels(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2)))
    one.train()
    found = features_under(one, other.state_dict(), x)
    assert torch.equal(found, other.eval()(x).features)
    assert not found.requires_grad
    assert all(module.training for module in one.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in one.state_dict().items())


@pytest.mark.parametrize("first", ["none", "initial"])
def test_moon_eq3_rounds_of_some_clients_agree_with_a_straight_loop(run, first):
    """`first` decides what a client is contrasted with whose first round is a later one."""
    done = run("moon", {**SOME, "algorithm.first": first, "algorithm.mu": 2})
    models = done.assembly.models
    clients = [ReferenceClient(done.assembly, number) for number in range(4)]
    sizes = {number: len(client.labels) for number, client in enumerate(clients)}
    start = [network(models.initial(models.architectures[k], k).values()) for k in range(4)]
    everyone, previous, late = start[0], {}, []
    for round_, result in enumerate(done.results[1:], start=1):
        trained = {}
        for number in result.participants:
            far = previous.get(number)
            if far is None and round_ > 1:
                late.append(number)
                far = start[number] if first == "initial" else None
            now = copy.deepcopy(everyone)
            sgd = torch.optim.SGD(now.parameters(), 0.05)
            loss = partial(moon_loss, now, everyone, far)
            clients[number].train(round_, loss, sgd, epochs=2)
            trained[number] = now
        everyone = network(weighted_mean(trained, sizes))
        previous.update(trained)
        assert_close(everyone.parameters(), done.servers[round_]["model"], 1e-5)
    assert late


def network(weights) -> nn.Sequential:
    """The small experiment's `mlp` with the given weights; features are the first part's."""
    layers = nn.Sequential(body("mlp"), nn.Linear(16, 10))
    set_parameters(layers.parameters(), weights)
    return layers


def moon_loss(now, everyone, far, x, y):
    """Cross-entropy + 2 * Eq. (3) with tau = 0.5; without `far` the cross-entropy alone."""
    z = now[0](x)
    loss = F.cross_entropy(now[1](z), y)
    if far is None:
        return loss
    with torch.no_grad():
        z_glob, z_prev = everyone[0](x), far[0](x)
    to_glob = (F.cosine_similarity(z, z_glob) / 0.5).exp()
    to_prev = (F.cosine_similarity(z, z_prev) / 0.5).exp()
    return loss - 2 * (to_glob / (to_glob + to_prev)).log().mean()


# --- FedETF's simplex and its scale, and FedETF-Per as its recipe --------------------------------


def sent_as(state):
    """The fields of what clients are sent."""
    return {"model": state["model"], "extra": state["extra"]}


def rotation(classes):
    draw = torch.randn(
        classes, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return torch.linalg.qr(draw).Q


def test_fedetf_the_simplex_is_that_of_everybody_and_of_the_seed(run):
    done, other = (run("fedetf", {**ONE_KIND, "rounds": 1, "seed": seed}) for seed in (0, 1))
    simplexes = [memory["simplex"] for memory in done.memories.values()]
    cosines = simplexes[0] @ simplexes[0].T
    torch.testing.assert_close(cosines, 10 / 9 * torch.eye(10) - 1 / 9, atol=1e-6, rtol=0)
    assert all(torch.equal(simplexes[0], simplex) for simplex in simplexes)
    assert not torch.equal(simplexes[0], other.memories[0]["simplex"])


@pytest.mark.parametrize("scale", [1.0, 3.0, -0.5])
def test_fedetf_predictions_have_the_scale_and_no_prior(assemble, scale):
    algorithm = assemble("fedetf", ONE_KIND).algorithm
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    memory = {"simplex": simplex_etf(torch.eye(10))}
    extra = {"scale": torch.tensor(scale)}
    local = LocalContext(None, None, ClientState({}, memory), None, extra)
    found = algorithm.predict(ClassifierOutput(torch.zeros(4, 16), logits), local)
    expected = scale * F.normalize(logits, dim=1) @ memory["simplex"].T
    torch.testing.assert_close(found, expected)


def test_fedetf_a_simplex_that_has_been_tuned_keeps_its_lengths():
    outputs = torch.tensor([[3.0, 4.0]])
    found = corner_products(outputs, torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.2, 0.8]]))


@pytest.fixture
def per(assemble):
    """A client that has the simplex, and what it is sent, for FedETF-Per with two alternations."""
    assembly = assemble("fedetf", {**ONE_KIND, "finetune_epochs": 2, "lr": 0.01})
    client = GroupRunner(assembly, CPU).client(0, 3)
    algorithm = assembly.algorithm
    down = ExtraParameters.down(**sent_as(algorithm.init_server(assembly.server(CPU))))
    kept = algorithm.init_client(client)
    memory = {**kept.memory, "simplex": simplex_etf(rotation(10)).float()}
    return assembly, client, ClientState(kept.model, memory), down


def test_fedetf_fedetf_per_is_its_recipe_written_out(per):
    assembly, client, state, down = per
    algorithm = assembly.algorithm
    local = algorithm.begin(client, state, down)
    model = local.model
    reference = ReferenceClient(assembly)
    scale, m = torch.tensor(1.0, requires_grad=True), state.memory["simplex"].clone()
    twin = copy.deepcopy(model)
    tuned = list(algorithm.fine_tune(local))

    def train(round_, epochs, sgd, prior):
        def loss(images, labels):
            logits = scale * (F.normalize(twin(Pixels(images)).logits, dim=1) @ m.T)
            return F.cross_entropy(logits + prior, labels)

        reference.train(round_, loss, sgd, epochs)

    counts = torch.bincount(reference.labels, minlength=10).clamp_min(1)
    train(4, 1, torch.optim.SGD([*twin.parameters(), scale], 0.01), counts.log())
    scale = scale.detach()
    for turn in (0, 1):
        m = m.detach().requires_grad_()
        train(5 + 2 * turn, 3, torch.optim.SGD([m], 0.1), 0)
        m = m.detach()
        train(6 + 2 * turn, 3, torch.optim.SGD(twin.head.parameters(), 0.05), 0)
        torch.testing.assert_close(tuned[turn].state.memory["simplex"], m, rtol=1e-4, atol=1e-5)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    assert not torch.equal(tuned[0].state.memory["simplex"], tuned[1].state.memory["simplex"])
