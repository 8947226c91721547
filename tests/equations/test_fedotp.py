"""FedOTP: one context travels, the other stays."""

from __future__ import annotations

import torch

SHORT = {"algorithm.length": 4}


def test_one_context_travels_and_the_other_stays(run):
    done = run("fedotp", SHORT)
    assert set(done.servers[-1]["model"]) == {"shared_context"}
    assert not torch.equal(
        done.servers[-1]["model"]["shared_context"], done.servers[0]["model"]["shared_context"]
    )
    assert all(set(model) == {"local_context"} for model in done.models.values())
    numbers = done.servers[-1]["model"]["shared_context"].numel()
    assert done.results[1].up.params == {"prompts": 4 * numbers, "statistics": 4}
