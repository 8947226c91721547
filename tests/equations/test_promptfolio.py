"""PromptFolio: both ends of theta are other methods, and what stays at a client."""

from __future__ import annotations

import torch

SHORT = {"algorithm.length": 4}


def test_theta_1_is_local_prompts(run):
    """But for the initial draw: the local context is the second."""
    done = run("promptfolio", {**SHORT, "algorithm.theta": 1})
    first, last = (done.servers[round_]["model"] for round_ in (0, -1))
    torch.testing.assert_close(last["shared_context"], first["shared_context"], rtol=1e-6, atol=0)
    local = [model["local_context"] for model in done.models.values()]
    assert all(not torch.equal(local[0], other) for other in local[1:])
