from __future__ import annotations

import torch

from fedray.language.prototypes import initial_prompts, insert_prompts


def test_m_0_changes_nothing():
    embeddings = torch.randn(4, 5, 3)
    assert torch.equal(insert_prompts(embeddings, torch.zeros(2, 0, 3), 2), embeddings)


def test_gradients_reach_the_prompts_of_their_class_only():
    prompts = torch.zeros(2, 2, 3, requires_grad=True)
    insert_prompts(torch.randn(4, 5, 3), prompts, 2)[2:].sum().backward()
    assert prompts.grad.tolist() == [[[0.0] * 3] * 2, [[2.0] * 3] * 2]


def test_prompts_may_be_longer_than_the_texts():
    embeddings = torch.arange(2.0).reshape(1, 2, 1)
    prompts = torch.tensor([[[-1.0], [-2.0], [-3.0]]])
    assert insert_prompts(embeddings, prompts, 1)[..., 0].tolist() == [[-1, -2, -3]]


def test_initial_prompts():
    drawn = initial_prompts(20, 10, 100, torch.Generator().manual_seed(0))
    assert drawn.shape == (20, 10, 100)
    assert abs(float(drawn.std()) - 0.02) < 2e-4
    assert abs(float(drawn.mean())) < 5e-4
    assert torch.equal(drawn, initial_prompts(20, 10, 100, torch.Generator().manual_seed(0)))
