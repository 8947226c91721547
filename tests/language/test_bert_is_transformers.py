"""A BERT under prompts, and its part that clients train, is transformers' BERT."""

from __future__ import annotations

import pytest
import torch

from fedray.config import component
from fedray.language.encoders import Tokens
from fedray.language.trainable import text_features

TEXTS = ["a photo of a cat : an animal with fur .", "dog", "a small round animal", "cat"]


def encoder(folder, **params):
    return component("text encoder", "bert", path=str(folder), **params).build().build()


def transformers_model(folder):
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_outputs_and_gradients_are_those_of_transformers(bert_folder, pooling):
    ours = encoder(bert_folder, pooling=pooling)
    tokens, model = ours.tokenize(TEXTS), transformers_model(bert_folder)
    found, expected = (ours.embed(tokens).clone().requires_grad_() for _ in range(2))
    hidden = model(inputs_embeds=expected, attention_mask=tokens.mask.long()).last_hidden_state
    weights = tokens.mask.unsqueeze(-1) / tokens.mask.sum(1)[:, None, None]
    theirs = hidden[:, 0] if pooling == "cls" else (hidden * weights).sum(1)
    mine = ours.encode(found, tokens)
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    for output in (mine, theirs):
        (output * torch.arange(output.numel()).view_as(output)).sum().backward()
    largest = float(expected.grad.abs().max())
    torch.testing.assert_close(found.grad, expected.grad, atol=1e-5 * largest, rtol=0)
    assert bool((found.grad[~tokens.mask] == 0).all())


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("whole", [True, False])
def test_gradients_of_trained_weights_are_those_of_transformers(bert_folder, pooling, whole):
    ours, model = encoder(bert_folder, pooling=pooling), transformers_model(bert_folder)
    tokens, part = ours.tokenize(TEXTS), ours.part(TEXTS, None if whole else 1)
    hidden = model(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
    weights = tokens.mask.unsqueeze(-1) / tokens.mask.sum(1)[:, None, None]
    theirs = hidden[:, 0] if pooling == "cls" else (hidden * weights).sum(1)
    trained = {name: tensor.requires_grad_() for name, tensor in part.tensors.items()}
    mine = text_features(trained, part.start, part.mask, part.shape)
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine, ours.features(TEXTS), atol=1e-5, rtol=1e-5)
    for output in (mine, theirs):
        (output * torch.arange(output.numel()).view_as(output)).sum().backward()
    assert len(trained) == (37 if whole else 16)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if not whole:  # the part counts its blocks from 0
        gradients = {n.replace("layer.1.", "layer.0."): g for n, g in gradients.items()}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, tensor in trained.items():
        if "word_embeddings" not in name:
            torch.testing.assert_close(tensor.grad, gradients[name], atol=1e-5 * largest, rtol=1e-4)


def test_batches_hold_texts_of_about_equal_length():
    lengths = torch.tensor([5, 2, 9, 2, 4])
    mask = torch.arange(10) < lengths.unsqueeze(1)
    tokens = Tokens(torch.arange(50).view(5, 10), mask, torch.zeros(5))
    assert [batch.tolist() for batch in tokens.batches(8)] == [[1, 3, 4], [0], [2]]
    assert [batch.tolist() for batch in tokens.batches(99)] == [[1, 3, 4, 0, 2]]
    assert [batch.tolist() for batch in tokens.batches(1)] == [[1], [3], [4], [0], [2]]
    some = tokens[torch.tensor([4, 1])]
    assert some.ids.tolist() == [[40, 41, 42, 43], [10, 11, 12, 13]]
    assert some.mask.sum(1).tolist() == [4, 2]
