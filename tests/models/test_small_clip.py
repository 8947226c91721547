"""The small CLIP that is part of the package."""

from __future__ import annotations

import json

import open_clip
import pytest
import torch
from torch.nn import functional as F

from fedray.config import component
from fedray.models.clip import small_clip_folder


@pytest.fixture(scope="module")
def small():
    name = f"local-dir:{small_clip_folder()}"
    return open_clip.create_model(name).eval(), open_clip.get_tokenizer(name)


def test_it_has_at_most_ten_megabytes_and_a_card():
    files = list(small_clip_folder().iterdir())
    assert sum(path.stat().st_size for path in files) <= 10_000_000
    card = (small_clip_folder() / "README.md").read_text(encoding="utf-8")
    assert "zero-shot" in card
    assert "| cifar10 |" in card


def test_its_widths_differ_so_that_nobody_mixes_them_up(small):
    model, _ = small
    config = json.loads((small_clip_folder() / "open_clip_config.json").read_text())["model_cfg"]
    widths = {config["embed_dim"], config["vision_cfg"]["width"], config["text_cfg"]["width"]}
    assert len(widths) == 3
    assert model.attn_mask is not None
    assert model.text_pool_type == "argmax"
    assert model.visual.attn_pool is None
    assert model.visual.pool_type == "tok"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@torch.no_grad()
def test_it_knows_words_of_which_it_has_seen_no_images(small):
    model, tokenizer = small
    printed = [f"a photo of a {noun}." for noun in ("puppy", "dog", "truck", "automobile")]
    puppy, dog, truck, automobile = F.normalize(model.encode_text(tokenizer(printed)), dim=1)
    assert puppy @ dog > puppy @ truck + 0.2
    assert automobile @ truck > automobile @ dog + 0.2


def test_every_word_has_a_token_and_the_end_token_is_the_largest(small):
    model, tokenizer = small
    ids = tokenizer(["a photo of a Golden Retriever.", "xyzzy plugh 42"])
    assert ids.shape == (2, model.context_length)
    assert (ids[:, 0] == model.vocab_size - 2).all()
    assert (ids.max(1).values == model.vocab_size - 1).all()
    assert (ids != tokenizer.tokenizer.unk_token_id).all()


def test_the_language_part_reads_its_text_tower(small):
    model, tokenizer = small
    encoder = component("text encoder", "openclip", path=str(small_clip_folder())).build().build()
    printed = ["a photo of a cat.", "a sports car on a road"]
    with torch.no_grad():
        expected = model.encode_text(tokenizer(printed))
    assert torch.allclose(encoder.features(printed), expected, atol=1e-5)
