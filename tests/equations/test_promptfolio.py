"""PromptFolio: both ends of theta are other methods, and what stays at a client."""

from __future__ import annotations

import torch

SHORT = {"algorithm.length": 4}


def test_theta_0_is_promptfl(run):
    plain = run("promptfl", SHORT)
    ours = run("promptfolio", {**SHORT, "algorithm.theta": 0})
    moved = plain.servers[-1]["model"]["context"] - plain.servers[0]["model"]["context"]
    close = ours.servers[-1]["model"]["shared_context"] - plain.servers[-1]["model"]["context"]
    assert close.abs().max() < 1e-3 * moved.abs().max()
    assert [r.per_client for r in ours.results] == [r.per_client for r in plain.results]


def test_theta_1_is_local_prompts(run):
    """But for the initial draw: the local context is the second."""
    done = run("promptfolio", {**SHORT, "algorithm.theta": 1})
    first, last = (done.servers[round_]["model"] for round_ in (0, -1))
    torch.testing.assert_close(last["shared_context"], first["shared_context"], rtol=1e-6, atol=0)
    local = [model["local_context"] for model in done.models.values()]
    assert all(not torch.equal(local[0], other) for other in local[1:])


def test_only_the_shared_context_travels_and_only_the_local_one_stays(run):
    done = run("promptfolio", SHORT)
    assert set(done.servers[-1]["model"]) == {"shared_context"}
    assert all(set(model) == {"local_context"} for model in done.models.values())
    numbers = done.servers[-1]["model"]["shared_context"].numel()
    assert done.results[1].up.params == {"prompts": 4 * numbers, "statistics": 4}
    assert done.results[1].down.params == {"prompts": 4 * numbers}
