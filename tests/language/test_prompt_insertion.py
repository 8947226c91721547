from __future__ import annotations

import pytest
import torch

from fedray.base.errors import UserError
from fedray.language.prototypes import initial_prompts, insert_prompts


def test_m_0_changes_nothing():
    embeddings = torch.randn(4, 5, 3)
    assert insert_prompts(embeddings, torch.zeros(2, 0, 3), 2) is embeddings


def test_gradients_reach_the_prompts_of_their_class_only():
    prompts = torch.zeros(2, 2, 3, requires_grad=True)
    insert_prompts(torch.randn(4, 5, 3), prompts, 2)[2:].sum().backward()
    assert prompts.grad.tolist() == [[[0.0] * 3] * 2, [[2.0] * 3] * 2]


def test_prompts_longer_than_a_text():
    embeddings, prompts = torch.randn(2, 8, 3), torch.zeros(2, 5, 3)
    assert insert_prompts(embeddings, prompts, 1, shortest=5).shape == (2, 8, 3)
    message = r"algorithm\.prompt_length=5 .* \(4 tokens\); set algorithm\.prompt_length to 4 or l"
    with pytest.raises(UserError, match=message):
        insert_prompts(embeddings, prompts, 1, shortest=4)
    with pytest.raises(UserError, match=r"prompt_length=9.*\(8 tokens\)"):
        insert_prompts(embeddings, torch.zeros(2, 9, 3), 1)


def test_with_a_limit_prompts_go_past_the_texts():
    embeddings = torch.arange(2.0).reshape(1, 2, 1)
    prompts = torch.tensor([[[-1.0], [-2.0], [-3.0]]])
    longer = insert_prompts(embeddings, prompts, 1, shortest=2, limit=3)
    assert longer[..., 0].tolist() == [[-1, -2, -3]]
    with pytest.raises(UserError, match=r"text encoder reads \(2 tokens\).* to 2 or less$"):
        insert_prompts(embeddings, prompts, 1, shortest=2, limit=2)
    with pytest.raises(UserError, match=r"algorithm\.past_text=true"):
        insert_prompts(embeddings, prompts, 1, shortest=2)


@pytest.mark.parametrize(("shape", "k"), [((3, 1, 3), 1), ((2, 1, 4), 1), ((2, 1, 3), 2)])
def test_shapes_that_do_not_match(shape, k):
    with pytest.raises(ValueError, match="do not fit embeddings"):
        insert_prompts(torch.randn(2, 8, 3), torch.zeros(shape), k)


def test_initial_prompts():
    drawn = initial_prompts(20, 10, 100, torch.Generator().manual_seed(0))
    assert drawn.shape == (20, 10, 100)
    assert abs(float(drawn.std()) - 0.02) < 2e-4
    assert abs(float(drawn.mean())) < 5e-4
    assert torch.equal(drawn, initial_prompts(20, 10, 100, torch.Generator().manual_seed(0)))
