"""Means and similarities that methods share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fedray.algorithms.averaging.fedfa_augmentation import variance_over_clients
from fedray.algorithms.distillation import feddf
from fedray.algorithms.distillation.feddistill import FedDistill
from fedray.algorithms.losses import cosine_matrix
from fedray.algorithms.mean import weighted_mean
from fedray.algorithms.personalised.fedpac import FedPAC, head_weights

# --- Similarities that methods share, by hand and under autocast ---------------------------------


def test_losses_cosines_by_hand_and_of_zero_vectors():
    a = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    b = torch.tensor([[5.0, 0.0], [0.0, -2.0]])
    torch.testing.assert_close(cosine_matrix(a, b), torch.tensor([[0.6, -0.8], [0.0, 0.0]]))


def test_losses_autocast_does_not_round_cosines():
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 512, generator=random) for n in (64, 10))
    exact = F.normalize(a.double(), dim=1) @ F.normalize(b.double(), dim=1).T
    with torch.autocast("cpu", torch.bfloat16):
        found = cosine_matrix(a, b)
        low = cosine_matrix(a.bfloat16(), b)
    assert found.dtype == low.dtype == torch.float32
    assert torch.equal(found, cosine_matrix(a, b))
    assert float((found - exact).abs().max()) / 0.01 < 1e-3  # logits at the temperature 0.01


# --- Means over clients are computed in double precision: exact to the last digit of a float32

CLIENTS, HEADS = 300, 20
VALUES = torch.randn(CLIENTS, 2, 3, generator=torch.Generator().manual_seed(0)) * 100
EXACT = VALUES.double().mean(0)


def method(kind, **hparams):
    return kind(**hparams).with_setting(SimpleNamespace(num_classes=2))


def uploads(**fields):
    """One upload a client; a field is a function of the client's values."""
    return {
        client: SimpleNamespace(**{name: make(values) for name, make in fields.items()})
        for client, values in enumerate(VALUES)
    }


def of_mapping(_):
    weights = dict.fromkeys(range(CLIENTS), 1 / CLIENTS)
    return weighted_mean(weights, {k: {"w": values} for k, values in enumerate(VALUES)})["w"]


def of_class_outputs(_):
    sent = {k: FedDistill.up(torch.arange(2), values) for k, values in enumerate(VALUES)}
    state = {"vectors": torch.zeros(2, 3), "present": torch.zeros(2, dtype=torch.bool)}
    return method(FedDistill).server_update(state, sent, None)["vectors"]


def of_an_ensemble(monkeypatch):
    learner = SimpleNamespace(load=lambda x: x, logits=lambda model, _: model)
    monkeypatch.setattr(feddf, "learner_of", lambda *_: learner)
    server = SimpleNamespace(
        architectures=["mlp"] * CLIENTS,
        public=None,
        device=torch.device("cpu"),
    )
    return method(feddf.FedDF).ensemble(uploads(model=lambda values: values), server)


def of_heads(_):
    """The first clients alone, with equal statistics: every client mixes the heads of all."""
    sent = uploads(
        means=lambda _: torch.ones(2, 4), variance=lambda _: 1.0, head=lambda values: {"w": values}
    )
    first = {client: sent[client] for client in range(HEADS)}
    return method(FedPAC, min_weight=0.0).combine_heads(first)[0].head["w"]


@pytest.mark.parametrize("mean", [of_mapping, of_class_outputs, of_an_ensemble, of_heads])
def test_means_a_mean_over_clients_is_exact(mean, monkeypatch):
    expected = EXACT
    if mean is of_heads:
        weights = head_weights(torch.ones(HEADS, 2, 4), torch.ones(HEADS), 0, 0.0)
        expected = torch.tensordot(weights, VALUES[:HEADS].double(), dims=1)
    found = mean(monkeypatch)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected.float())


def test_means_a_variance_over_clients_is_exact():
    shifted = VALUES[:, 0] + 1e4
    assert torch.equal(variance_over_clients(shifted), shifted.double().var(0).float())
