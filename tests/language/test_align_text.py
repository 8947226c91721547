"""ALIGN's text tower on a small model made from its configuration."""

from __future__ import annotations

import pytest
import torch

from fedray.config import component
from fedray.errors import UserError

TEXTS = ["a photo of a seven", "a photo of a small round eight with a long line"]


@pytest.fixture
def folder(align_folder):
    return align_folder


def choose(folder, name="align"):
    return component("text encoder", name, path=str(folder)).build()


def test_features_are_get_text_features(folder):
    from transformers import AlignModel, AutoTokenizer

    found = choose(folder).build().features(TEXTS)
    model = AlignModel.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model.get_text_features(**inputs).pooler_output
    assert found.shape == (2, 10)
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_width_is_known_before_the_weights_are_loaded(folder):
    choice = choose(folder)
    assert choice.width() == choice.build().dim == 10
    assert choice.identity() == choice.build().identity
    assert choice.identity().startswith("align:")


def test_prompts_have_gradients_and_weights_none(folder):
    encoder = choose(folder).build()
    tokens = encoder.tokenize(TEXTS)
    embeddings = encoder.embed(tokens).detach().requires_grad_()
    encoder.encode(embeddings, tokens).sum().backward()
    assert encoder.token_width == 16
    assert float(embeddings.grad.abs().sum()) > 0
    assert not any(tensor.requires_grad for tensor in encoder.bert.tensors.values())


def test_as_a_bert_it_is_refused_by_name(folder):
    with pytest.raises(UserError, match=r"kind 'align'; set text\.encoder\.name=align"):
        choose(folder, "bert").build()


def test_a_bert_is_no_align(tiny_bert):
    with pytest.raises(UserError, match=r"kind 'bert'; set text\.encoder\.name=bert"):
        choose(tiny_bert).build()


def test_weights_without_the_text_tower_are_refused(folder, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    kept = {name: w for name, w in weights.items() if name != "text_projection.weight"}
    save_file(kept, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"1 of 55 weights.*first projection\.weight"):
        choose(broken).build()
