"""FedProx's term by hand, and what it does to a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedray
from fedray.algorithms.losses import proximal_term


def test_eq2_the_term_by_hand_is_squared():
    line = torch.nn.Linear(2, 1)
    with torch.no_grad():
        line.weight.copy_(torch.tensor([[3.0, 4.0]]))
        line.bias.fill_(2.0)
    w0 = {"weight": torch.zeros(1, 2), "bias": torch.tensor([1.0])}
    assert proximal_term(line, w0, 0.5).item() == pytest.approx(0.5 / 2 * (9 + 16 + 1))


def test_contributing_walks_through_this_very_file():
    package = Path(fedray.__file__).parent
    source = (package / "algorithms" / "averaging" / "fedprox.py").read_text()
    contributing = package.parent / "CONTRIBUTING.md"
    if not contributing.exists():
        pytest.skip("CONTRIBUTING.md is not part of an installed wheel")
    assert f"```python\n{source}```" in contributing.read_text()
    assert len(source.splitlines()) < 60
