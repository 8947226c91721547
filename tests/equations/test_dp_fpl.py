"""DP-FPL: factors and gradients of the official code's loops, the noise, and a whole round."""

from __future__ import annotations

from math import log, sqrt

import pytest
import torch
import torch.nn.functional as F
from clips import CPU, gradients, noise

from fedray.algorithms.prompts.dp_fpl import factors, local_gradient, private
from fedray.models import ImageFeatures
from fedray.runtime.clients import ClientRuntime

SHORT = {"algorithm.length": 4, "algorithm.rank": 2}


def stream():
    return torch.Generator().manual_seed(3)


def orthogonalised(matrix):
    """The columns of the official code's loop."""
    columns = []
    for column in matrix.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_the_factors_span_what_the_official_loop_spans(rank):
    context, columns = noise(4, 16), min(rank, 4)
    u, v = factors(context, rank, stream())
    theirs = orthogonalised(context @ torch.randn(16, columns, generator=stream()))
    there = orthogonalised(context.T @ theirs).T
    torch.testing.assert_close(u @ u.T, theirs @ theirs.T)
    torch.testing.assert_close(v.T @ v, there.T @ there)  # signs have no effect
    torch.testing.assert_close(u.T @ u, torch.eye(columns))


def test_the_gradient_by_hand():
    """G = [[1, 2], [3, 4]], u = (1, 0)^T, v = (0, 1): du = (2, 4)^T, dv = (1, 2)."""
    u, v = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])
    whole = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    du, dv = whole @ v.T, u.T @ whole
    assert (du.tolist(), dv.tolist()) == ([[2.0], [4.0]], [[1.0, 2.0]])
    # (du) v = [[0, 2], [0, 4]], u (dv) = [[1, 2], [0, 0]], u u^T (du) v = [[0, 2], [0, 0]]
    assert local_gradient(u, v, du, dv).tolist() == [[1.0, 6.0], [0.0, 4.0]]


def test_private_gradients_are_clipped_and_noisy(assemble):
    large, small = torch.full((2, 2), 3.0), torch.full((2, 2), 0.1)
    torch.testing.assert_close(private(large, 1.0, 0.0, stream()), torch.full((2, 2), 0.5))
    assert torch.equal(private(small, 1.0, 0.0, stream()), small)
    assert torch.equal(private(0 * small, 1.0, 0.0, stream()), 0 * small)
    drawn = private(torch.zeros(200, 200), 1.0, 0.7, stream())
    assert float(drawn.std()) == pytest.approx(0.7, rel=0.02)
    keys = {"rounds": 4, "batch_size": 8, "algorithm.epsilon": 0.2, "algorithm.clip": 5.0}
    method = assemble("dp_fpl", keys).algorithm
    assert method.noise_std() == pytest.approx(sqrt(4 * log(1e5)) / 0.2 * 5.0 / 8)
    assert assemble("dp_fpl", {"rounds": 4}).algorithm.noise_std() == 0


def test_a_round_is_one_step_on_the_mean_gradient_and_through_the_factors(run):
    """Of everybody, with one batch that is all of a client's images."""
    done = run("dp_fpl", {**SHORT, "rounds": 1, "batch_size": 1000, "local_epochs": 3, "lr": 2.0})
    runtime, means = ClientRuntime(done.assembly, CPU), []
    before, after = (state["model"]["shared_context"] for state in done.servers)
    for number, kept in done.models.items():
        client = runtime.client(number, 1)
        start = client.initial()["local_context"]
        model = client.load({"shared_context": before, "local_context": start})
        features, labels = client.train.tensors(CPU)
        loss = F.cross_entropy(model(ImageFeatures(features)).logits, labels)
        whole = gradients(model, loss)["shared_context"]
        means.append(whole)
        random = client.setting.streams.torch("dp_fpl", round_=1, client=number)
        torch.randperm(len(labels), generator=random)
        u, v = factors(start, 2, random)
        step = 2.0 * 0.1 * local_gradient(u, v, whole @ v.T, u.T @ whole)
        torch.testing.assert_close(kept["local_context"], start - step, rtol=1e-3, atol=1e-6)
        assert float(step.abs().max()) > 1e-4
    expected = before - 2.0 * torch.stack(means).mean(0)
    torch.testing.assert_close(after, expected, rtol=1e-3, atol=1e-6)


def test_a_round_reads_one_batch(run):
    done = run("dp_fpl", {**SHORT, "rounds": 1, "batch_size": 8, "local_epochs": 2})
    other = run("dp_fpl", {**SHORT, "rounds": 1, "batch_size": 8, "local_epochs": 1})
    assert torch.equal(*(r.servers[-1]["model"]["shared_context"] for r in (done, other)))
    noisy = run("dp_fpl", {**SHORT, "rounds": 1, "batch_size": 8, "algorithm.epsilon": 1.0})
    pairs = [(noisy.models[k]["local_context"], done.models[k]["local_context"]) for k in (0, 1)]
    assert all(float((a - b).abs().max()) > 1e-3 for a, b in pairs)
