"""BERT without padding and without transformers, frozen or trained, is transformers' BERT."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch

from fedray.config import component
from fedray.errors import UserError
from fedray.language.encoders import Tokens
from fedray.language.encoders.bert_blocks import Bert, Packing

TEXTS = ["a photo of a cat : an animal with fur .", "dog", "a small round animal", "cat"]


def encoder(folder, **params):
    return component("text encoder", "bert", path=str(folder), **params).build().build()


def transformers_model(folder):
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()


def changed(folder, tmp_path, **config):
    """A copy of a folder with another configuration."""
    copy = shutil.copytree(folder, tmp_path / "changed")
    found = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**found, **config}))
    return copy


def test_texts_of_equal_length_stand_next_to_each_other():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 1]]).bool()
    packing = Packing.of(mask)
    assert packing.groups == ((1, 1), (2, 3))
    assert packing.order.tolist() == [1, 0, 2]
    assert packing.rows.tolist() == [3, 0, 1, 2, 6, 7, 8]
    assert packing.positions.tolist() == [0, 0, 1, 2, 0, 1, 2]
    assert packing.firsts().tolist() == [0, 1, 4]
    assert packing.unsorted(packing.order.unsqueeze(1)).flatten().tolist() == [0, 1, 2]


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
    mine = Bert(trained, part.shape, trained=True).read_from(part.start, part.mask)
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine, ours.features(TEXTS), atol=1e-5, rtol=1e-5)
    for output in (mine, theirs):
        (output * torch.arange(output.numel()).view_as(output)).sum().backward()
    assert len(trained) == (37 if whole else 16)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, tensor in trained.items():
        if "word_embeddings" not in name:
            torch.testing.assert_close(tensor.grad, gradients[name], atol=1e-5 * largest, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "electra"}, "a model of the kind 'electra'; give a folder with a BERT"),
        ({"is_decoder": True}, "config.json has is_decoder=True"),
        ({"hidden_act": "silu"}, "config.json has hidden_act=silu"),
        ({"vocab_size": 7}, r"word_embeddings.weight: found \[20, 32\], expected \[7, 32\]"),
    ],
)
def test_other_models_are_refused(bert_folder, tmp_path, config, sentence):
    with pytest.raises(UserError, match=sentence):
        encoder(changed(bert_folder, tmp_path, **config))


def test_the_first_blocks_outputs(bert_folder):
    ours, model = encoder(bert_folder), transformers_model(bert_folder)
    tokens = ours.tokenize(TEXTS)
    states = model(
        input_ids=tokens.ids, attention_mask=tokens.mask.long(), output_hidden_states=True
    ).hidden_states
    for blocks in range(3):
        found = ours.bert.states(tokens.ids, tokens.mask, blocks)
        torch.testing.assert_close(
            found[tokens.mask], states[blocks][tokens.mask], atol=1e-5, rtol=1e-5
        )
        assert bool((found[~tokens.mask] == 0).all())


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


def test_a_bert_is_read_where_transformers_is_not(bert_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert encoder(bert_folder).dim == 32
