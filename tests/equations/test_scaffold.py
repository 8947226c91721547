"""SCAFFOLD's variates by hand, and its identities on whole runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedray.algorithms.averaging.scaffold import ControlledUpdate, new_control
from fedray.models import Pixels, build
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session

ONE_KIND = {"model.group": "cnn2"}
SHAPE = {"channels": 1, "image_size": 8, "num_classes": 10, "feature_dim": 16}


@pytest.fixture
def straight_loop(run):
    """`straight_loop(lr_server)` returns a run with two of four clients in a round, and a loop.

    The loop is written from the paper and shares only images, initial weights and the order of
    batches with the run. It returns the models, c, and the mean loss of each client's last epoch,
    after each of three rounds.
    """

    def straight_loop(lr_server):
        changes = {"rounds": 3, "participation": 0.5, "local_epochs": 2, "lr": 0.05}
        done = run("scaffold", {**ONE_KIND, **changes, "algorithm.lr_server": lr_server})
        data, streams = done.assembly.data, done.assembly.streams
        images = torch.tensor(data.images.images).float() * (2 / 255) - 1
        labels = torch.tensor(data.images.labels)
        model = build("cnn2", **SHAPE, generator=streams.torch("weights/cnn2"))
        parameters = list(model.parameters())
        x = [w.detach().clone() for w in parameters]
        c = [torch.zeros_like(w) for w in x]
        controls = dict.fromkeys(range(4), c)
        rounds = []
        for number, result in enumerate(done.results[1:], start=1):
            steps, moves, losses = [], [], []
            for client in result.participants:
                c_i, own = controls[client], torch.tensor(data.train[client])
                with torch.no_grad():
                    for w, start in zip(parameters, x, strict=True):
                        w.copy_(start)
                order, count = streams.torch("batches", round_=number, client=client), 0
                for _ in range(2):
                    seen = []
                    chunks = list(torch.randperm(len(own), generator=order).split(16))
                    if len(chunks) > 1 and len(chunks[-1]) == 1:
                        chunks[-2:] = [torch.cat(chunks[-2:])]
                    for chunk in chunks:
                        logits = model(Pixels(images[own[chunk]])).logits
                        value = F.cross_entropy(logits, labels[own[chunk]])
                        gradients = torch.autograd.grad(value, parameters)
                        with torch.no_grad():
                            pairs = zip(parameters, gradients, c_i, c, strict=True)
                            for w, g, mine, global_ in pairs:
                                w -= 0.05 * (g - mine + global_)
                        seen.append(value.item())
                        count += 1
                y = [w.detach().clone() for w in parameters]
                new = [
                    mine - global_ + (start - end) / (count * 0.05)
                    for mine, global_, start, end in zip(c_i, c, x, y, strict=True)
                ]
                steps.append([end - start for start, end in zip(x, y, strict=True)])
                moves.append([after - before for after, before in zip(new, c_i, strict=True)])
                controls[client] = new
                losses.append(sum(seen) / len(seen))
            x = [w + lr_server * sum(each) / 2 for w, *each in zip(x, *steps, strict=True)]
            c = [w + sum(each) / 4 for w, *each in zip(c, *moves, strict=True)]
            rounds.append((x, c, losses))
        return done, [name for name, _ in model.named_parameters()], rounds

    return straight_loop


@pytest.mark.parametrize("lr_server", [1.0, 0.5])
def test_eq3_eq4_eq5_three_rounds_agree_with_a_straight_loop(straight_loop, lr_server):
    done, names, rounds = straight_loop(lr_server)
    for server, result, (x, c, losses) in zip(
        done.servers[1:], done.results[1:], rounds, strict=True
    ):
        for name, w, variate in zip(names, x, c, strict=True):
            torch.testing.assert_close(server["model"][name], w, rtol=0, atol=2e-5)
            torch.testing.assert_close(server["control"][name], variate, rtol=0, atol=2e-4)
        assert result.metrics["train_loss"] == pytest.approx(sum(losses) / 2, abs=1e-5)


def test_eq4_option_ii_by_hand():
    one = [torch.tensor([v]) for v in (0.5, 0.25, 1.0, 0.4)]
    # c_i - c + (x - y) / (K eta) = 0.5 - 0.25 + 0.6 / (3 * 0.1)
    assert new_control(*one, 3 * 0.1).item() == pytest.approx(2.25)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_eq5_after_full_participation_c_is_the_mean_of_the_clients(run, momentum):
    done = run("scaffold", {**ONE_KIND, "rounds": 3, "optimizer.momentum": momentum, "lr": 0.01})
    controls = [memory["control"] for memory in done.memories.values()]
    for name, c in done.servers[-1]["control"].items():
        mean = torch.stack([control[name] for control in controls]).mean(0)
        torch.testing.assert_close(c, mean, rtol=1e-4, atol=1e-6)
        assert float(c.abs().max()) > 0


def test_eq5_divides_by_all_clients_not_by_those_that_took_part(assemble):
    method = assemble("scaffold", ONE_KIND).algorithm
    uplinks = {
        client: ControlledUpdate({"w": torch.tensor([w])}, {}, 9, {"w": torch.tensor([moved])})
        for client, w, moved in [(0, 2.0, 4.0), (3, 6.0, 8.0)]
    }
    state = {"model": {"w": torch.tensor([1.0])}, "control": {"w": torch.tensor([0.5])}}
    after = method.server_update(state, uplinks, None)
    assert after["model"]["w"].tolist() == [4.0]
    assert after["control"]["w"].tolist() == [0.5 + (4.0 + 8.0) / 4]  # N = 4, |S| = 2


def test_eq5_c_is_the_mean_of_all_clients_when_some_are_away(run):
    """Whoever has never taken part counts with its variate of 0."""
    done = run("scaffold", {**ONE_KIND, "rounds": 3, "participation": 0.25, "lr": 0.01})
    assert len(done.memories) < 4
    for name, c in done.servers[-1]["control"].items():
        total = torch.stack([memory["control"][name] for memory in done.memories.values()]).sum(0)
        torch.testing.assert_close(c, total / 4, rtol=1e-4, atol=1e-6)


def test_the_variate_of_a_single_step_is_its_gradient(run):
    changes = {**ONE_KIND, "rounds": 1, "batch_size": 500, "data.clients": 1, "lr": 0.1}
    done = run("scaffold", changes)
    before, after = (state["model"] for state in done.servers)
    for name in before:
        gradient = (before[name] - after[name]) / 0.1
        torch.testing.assert_close(done.memories[0]["control"][name], gradient)


def test_the_first_round_is_fedavgs_with_uniform_weights(run):
    changes = {**ONE_KIND, "rounds": 2}
    controlled = run("scaffold", changes)
    plain = run("fedavg", {**changes, "algorithm.weights": "uniform"})

    def difference(round_):
        return max(
            float((controlled.servers[round_]["model"][name] - tensor).abs().max())
            for name, tensor in plain.servers[round_]["model"].items()
        )

    assert difference(1) < 1e-6
    assert difference(2) > 1e-4


def test_one_client_is_fedavg(run):
    changes = {**ONE_KIND, "rounds": 3, "data.clients": 1}
    controlled, plain = run("scaffold", changes), run("fedavg", changes)
    for name, tensor in plain.servers[-1]["model"].items():
        torch.testing.assert_close(
            controlled.servers[-1]["model"][name], tensor, rtol=1e-4, atol=1e-6
        )


def test_twice_the_parameters_travel_and_absent_clients_keep_their_variate(run):
    changes = {**ONE_KIND, "rounds": 2, "participation": 0.5}
    controlled, plain = run("scaffold", changes), run("fedavg", changes)
    for ours, fedavg in zip(controlled.results[1:], plain.results[1:], strict=True):
        assert ours.up.params["weights"] == 2 * fedavg.up.params["weights"]
        assert ours.down.params["weights"] == 2 * fedavg.down.params["weights"]
    called = {client for result in controlled.results for client in result.participants}
    assert set(controlled.memories) == called


def test_a_resumed_run_is_the_undisturbed_one(assemble, tmp_path):
    experiment = assemble("scaffold", {**ONE_KIND, "rounds": 3}).experiment

    def rounds(folder):
        cpu = torch.device("cpu")
        session = Session(experiment, tmp_path / folder, lambda parts: SerialExecutor(parts, cpu))
        return session.rounds()

    stopped = rounds("stopped")
    before = [next(stopped), next(stopped)]
    stopped.close()
    found, expected = [*before, *rounds("stopped")], list(rounds("undisturbed"))
    assert [result.round for result in found] == [0, 1, 2, 3]
    assert [r.metrics for r in found] == [r.metrics for r in expected]
    assert [r.per_client for r in found] == [r.per_client for r in expected]


def test_eq4_divides_by_the_rounds_learning_rate(run):
    """K eta is that of the round: a warm-up's first control is that of a run with its rate."""
    warm_up = {"name": "constant", "warmup_rounds": 1, "warmup": "constant", "warmup_lr": 0.02}
    warmed = run("scaffold", {**ONE_KIND, "rounds": 2, "lr": 0.1, "lr_schedule": warm_up})
    slow = run("scaffold", {**ONE_KIND, "rounds": 1, "lr": 0.02})
    found, expected = (done.servers[1]["control"] for done in (warmed, slow))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
