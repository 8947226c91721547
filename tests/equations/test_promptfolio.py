"""PromptFolio: the mixture by hand."""

from __future__ import annotations

import pytest
import torch

from fedray.algorithms.prompts.promptfolio import mix


def test_the_mixture_by_hand_is_no_unit_vector():
    shared, local = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    mixed = mix(shared, local, 0.4)
    torch.testing.assert_close(mixed, torch.tensor([[0.6, 0.4]]))
    assert float(mixed.norm()) == pytest.approx(0.52**0.5)
