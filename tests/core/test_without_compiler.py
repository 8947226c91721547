"""Torch's optimisers without torch's compiler: its numbers, and no import of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedray.core.optimizers import TorchAdam, TorchAdamW, TorchSGD

CASES = [
    (
        TorchSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    (TorchAdam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (TorchAdamW, torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.9)}),
]
IN_A_NEW_PROCESS = """
import sys, torch
from fedray.core.optimizers import TorchAdam, TorchAdamW, TorchSGD
for kind in (TorchSGD, TorchAdam, TorchAdamW):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1)
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
sys.exit("torch._dynamo" in sys.modules)
"""


def steps(kind: type[torch.optim.Optimizer], **options: object) -> tuple[torch.Tensor, int]:
    """A weight after three steps, and how often a hook was called."""
    weight = torch.nn.Parameter(torch.linspace(-1, 2, 7))
    optimizer = kind([weight], **options)  # type: ignore[arg-type]
    calls: list[bool] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    for _ in range(3):
        optimizer.zero_grad()
        (weight.sin() * weight).sum().backward()
        optimizer.step()
    return weight.detach(), len(calls)


@pytest.mark.parametrize(("ours", "torchs", "options"), CASES)
def test_the_numbers_and_hooks_are_torchs(ours, torchs, options):
    (mine, called), (theirs, expected) = (steps(kind, **options) for kind in (ours, torchs))
    assert torch.equal(mine, theirs)
    assert called == expected == 3


@pytest.mark.slow
def test_the_compiler_is_not_imported():
    done = subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], check=False)
    assert done.returncode == 0
