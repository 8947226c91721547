"""FedCLIP: the gate is the only thing that travels."""

from __future__ import annotations

import torch
from prompting import prompted_model


def test_the_adapter_is_what_travels(run):
    done = run("fedclip", {"lr": 0.5})
    width = prompted_model(done.assembly).clip.dim
    numbers = 2 * (width**2 + width)
    assert done.results[1].up.params == {"weights": 4 * numbers, "statistics": 4}
    assert any(
        not torch.equal(tensor, done.servers[0]["model"][name])
        for name, tensor in done.servers[-1]["model"].items()
    )
