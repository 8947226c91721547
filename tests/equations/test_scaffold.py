"""SCAFFOLD's variates by hand, and its identities on whole runs."""

from __future__ import annotations

import pytest
import torch

from fedray.algorithms.scaffold import CONTROL, drift, new_control

ONE_KIND = {"model.group": "cnn2"}


def test_eq3_the_gradient_of_the_drift_is_the_correction():
    line = torch.nn.Linear(2, 1)
    correction = {"weight": torch.tensor([[0.5, -2.0]]), "bias": torch.tensor([3.0])}
    drift(line, correction).backward()
    assert torch.equal(line.weight.grad, correction["weight"])
    assert torch.equal(line.bias.grad, correction["bias"])


def test_eq4_option_ii_by_hand():
    one = [torch.tensor([v]) for v in (0.5, 0.25, 1.0, 0.4)]
    # c_i - c + (x - y) / (K eta) = 0.5 - 0.25 + 0.6 / (3 * 0.1)
    assert new_control(*one, 3 * 0.1).item() == pytest.approx(2.25)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_eq5_after_full_participation_c_is_the_mean_of_the_clients(run, momentum):
    done = run("scaffold", {**ONE_KIND, "rounds": 3, "momentum": momentum, "lr": 0.01})
    for name, c in done.servers[-1].items():
        if name.startswith(CONTROL):
            own = torch.stack([memory[name] for memory in done.memories.values()])
            torch.testing.assert_close(c, own.mean(0), rtol=1e-4, atol=1e-6)
            assert float(c.abs().max()) > 0


def test_the_variate_of_a_single_step_is_its_gradient(run):
    changes = {**ONE_KIND, "rounds": 1, "batch_size": 500, "data.clients": 1, "lr": 0.1}
    done = run("scaffold", changes)
    before, after = done.servers
    for name in (n for n in before if not n.startswith(CONTROL)):
        gradient = (before[name] - after[name]) / 0.1
        torch.testing.assert_close(done.memories[0][CONTROL + name], gradient)


def test_the_first_round_is_fedavgs_with_uniform_weights(run):
    changes = {**ONE_KIND, "rounds": 2}
    controlled = run("scaffold", changes)
    plain = run("fedavg", {**changes, "algorithm.weights": "uniform"})

    def apart(round_):
        return max(
            float((controlled.servers[round_][name] - tensor).abs().max())
            for name, tensor in plain.servers[round_].items()
        )

    assert apart(1) < 1e-6
    assert apart(2) > 1e-4


def test_one_client_is_fedavg(run):
    changes = {**ONE_KIND, "rounds": 3, "data.clients": 1}
    controlled, plain = run("scaffold", changes), run("fedavg", changes)
    for name, tensor in plain.servers[-1].items():
        torch.testing.assert_close(controlled.servers[-1][name], tensor, rtol=1e-4, atol=1e-6)


def test_twice_the_parameters_travel_and_absent_clients_keep_their_variate(run):
    changes = {**ONE_KIND, "rounds": 2, "participation": 0.5}
    controlled, plain = run("scaffold", changes), run("fedavg", changes)
    for ours, fedavg in zip(controlled.results[1:], plain.results[1:], strict=True):
        assert ours.up.params["weights"] == 2 * fedavg.up.params["weights"]
        assert ours.down.params["weights"] == 2 * fedavg.down.params["weights"]
    called = {client for result in controlled.results for client in result.participants}
    assert set(controlled.memories) == called
