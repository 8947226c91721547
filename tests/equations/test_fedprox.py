"""FedProx's term by hand, and what it does to a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fedray
from fedray.algorithms.losses import proximal_term
from fedray.models import build

ONE_KIND = {"model.group": "cnn2", "lr": 0.1}


def test_the_terms_gradient_is_mu_times_the_distance():
    def model(seed):
        return build(
            "mlp",
            channels=1,
            image_size=8,
            num_classes=10,
            feature_dim=16,
            generator=torch.Generator().manual_seed(seed),
        )

    w, w0 = model(1), {name: p.detach() for name, p in model(2).named_parameters()}
    names, parameters = zip(*w.named_parameters(), strict=True)
    for name, p, gradient in zip(
        names, parameters, torch.autograd.grad(proximal_term(w, w0, 0.3), parameters), strict=True
    ):
        torch.testing.assert_close(gradient, 0.3 * (p.detach() - w0[name]))
        assert float(gradient.abs().max()) > 0


def test_eq2_the_term_by_hand_is_squared():
    line = torch.nn.Linear(2, 1)
    with torch.no_grad():
        line.weight.copy_(torch.tensor([[3.0, 4.0]]))
        line.bias.fill_(2.0)
    w0 = {"weight": torch.zeros(1, 2), "bias": torch.tensor([1.0])}
    assert proximal_term(line, w0, 0.5).item() == pytest.approx(0.5 / 2 * (9 + 16 + 1))


def test_the_term_holds_clients_near_the_global_model(run):
    def distance(mu):
        done = run("fedprox", {**ONE_KIND, "algorithm.mu": mu, "rounds": 1, "local_epochs": 3})
        before, after = (state["model"] for state in done.servers)
        return sum(float(F.mse_loss(after[n], before[n], reduction="sum")) for n in before)

    assert distance(5) < 0.5 * distance(0)


def test_contributing_walks_through_this_very_file():
    package = Path(fedray.__file__).parent
    source = (package / "algorithms" / "averaging" / "fedprox.py").read_text()
    contributing = package.parent / "CONTRIBUTING.md"
    if not contributing.exists():
        pytest.skip("CONTRIBUTING.md is not part of an installed wheel")
    assert f"```python\n{source}```" in contributing.read_text()
    assert len(source.splitlines()) < 60
