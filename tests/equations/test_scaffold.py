"""SCAFFOLD as a straight loop, and what its server divides by."""

from __future__ import annotations

import pytest
import torch
from reference import ReferenceClient, initial_model, set_parameters, supervised

from fedray.algorithms.averaging.scaffold import Scaffold
from fedray.core import Privacy

ONE_KIND = {"model.group": "cnn2"}
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
def test_eq3_eq4_eq5_three_rounds_agree_with_a_straight_loop(run, lr_server):
    """Two of four clients take part in a round; the reported training loss is a loss."""
    changes = {"rounds": 3, "participation": 0.5, "local_epochs": 2, "lr": LR}
    done = run("scaffold", {**ONE_KIND, **changes, "algorithm.lr_server": lr_server})
    rounds = zip(done.servers[1:], done.results[1:], straight_loop(done, lr_server), strict=True)
    for server, result, (x, c, loss) in rounds:
        for name, w, variate in zip(server["control"], x, c, strict=True):
            torch.testing.assert_close(server["model"][name], w, rtol=0, atol=2e-5)
            torch.testing.assert_close(server["control"][name], variate, rtol=0, atol=2e-4)
        assert result.metrics["train_loss"] == pytest.approx(loss, abs=1e-5)


def test_eq5_divides_by_all_clients_not_by_those_that_took_part(assemble):
    method = assemble("scaffold", ONE_KIND).algorithm
    uplinks = {
        client: Scaffold.up({"w": torch.tensor([w])}, 9, {"w": torch.tensor([moved])})
        for client, w, moved in [(0, 2.0, 4.0), (3, 6.0, 8.0)]
    }
    state = {"model": {"w": torch.tensor([1.0])}, "control": {"w": torch.tensor([0.5])}}
    after = method.server_update(state, uplinks, None)
    assert after["model"]["w"].tolist() == [4.0]
    assert after["control"]["w"].tolist() == [0.5 + (4.0 + 8.0) / 4]  # N = 4, |S| = 2


def test_clipping_measures_the_change_of_the_variate_from_zero():
    down = Scaffold.down({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])})
    small = Scaffold.up({"w": torch.tensor([1.3])}, 9, {"w": torch.tensor([0.4])})
    assert Privacy("central", 0.5, 0.0).clipped(small, down) is small
    clipped = Privacy("central", 0.05, 0.0).clipped(small, down)
    torch.testing.assert_close(clipped.model["w"], torch.tensor([1.03]))
    torch.testing.assert_close(clipped.change["w"], torch.tensor([0.04]))


def test_eq4_divides_by_the_rounds_learning_rate(run):
    """K eta is that of the round: a warm-up's first control is that of a run with its rate."""
    warm_up = {"name": "constant", "warmup_rounds": 1, "warmup_lr": 0.02}
    warmed = run("scaffold", {**ONE_KIND, "rounds": 2, "lr": 0.1, "lr_schedule": warm_up})
    slow = run("scaffold", {**ONE_KIND, "rounds": 1, "lr": 0.02})
    found, expected = (done.servers[1]["control"] for done in (warmed, slow))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
