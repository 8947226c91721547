from __future__ import annotations

import json

import pytest
import torch
from encoding import choose, run
from torch import Tensor

from fedray.language.encoders import TextEncoder

TEXTS = ["a photo of a cat: an animal with fur.", "dog", "a small round animal"]


def load(path, **options) -> TextEncoder:
    return choose("openclip", path=str(path), **options).build()


def official(model, texts: list[str]) -> Tensor:
    import open_clip

    tokens = open_clip.SimpleTokenizer(context_length=32)(texts)
    with torch.no_grad():
        return model.encode_text(tokens)


VARIANTS = {
    "eos": {"pool_type": "eos", "eos_id": 49407},
    "bidirectional": {"custom": True, "no_causal_mask": True, "pool_type": "last"},
    "projection with bias": {"custom": True, "proj_bias": True},
    "no projection": {"custom": True, "proj_type": "none"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_is_encode_text_when_nothing_is_replaced(save_clip, tmp_path, variant):
    model = save_clip(tmp_path, **VARIANTS[variant])
    encoder = load(tmp_path)
    expected = official(model, TEXTS)
    assert torch.allclose(run(encoder, TEXTS), expected, atol=1e-5)
    assert torch.allclose(encoder.features(TEXTS), expected, atol=1e-5)
    assert encoder.dim == expected.shape[1]
    assert encoder.token_width == 16


def test_texts_are_cut_behind_the_last_end_token(clip_folder):
    encoder = load(clip_folder)
    tokens = encoder.tokenize(TEXTS)
    assert tokens.ids.shape == (3, 13)
    assert tokens.read.tolist() == [12, 2, 5]
    assert tokens.mask.sum(1).tolist() == [13, 3, 6]
    alone = torch.cat([run(encoder, [text]) for text in TEXTS])
    assert torch.allclose(run(encoder, TEXTS), alone, atol=1e-5)


def test_bidirectional_towers_are_not_cut(save_clip, tmp_path):
    save_clip(tmp_path, **VARIANTS["bidirectional"])
    tokens = load(tmp_path).tokenize(TEXTS)
    assert tokens.ids.shape == (3, 32)
    assert tokens.read.tolist() == [31, 31, 31]


def test_is_frozen_but_differentiable(clip_folder):
    encoder = load(clip_folder)
    tokens = encoder.tokenize(TEXTS)
    embeddings = encoder.embed(tokens)
    assert not embeddings.requires_grad
    embeddings.requires_grad_()
    encoder.encode(embeddings, tokens)[:, 0].sum().backward()
    assert embeddings.grad.abs().sum() > 0
    assert embeddings.grad[1, 3:].abs().sum() == 0  # behind the end token
    assert all(not p.requires_grad and p.grad is None for p in encoder._tower.parameters())


def test_weights_in_half_precision_are_read(clip_folder, clip_config, tmp_path):
    import open_clip
    from safetensors.torch import load_file

    (tmp_path / "tiny-test.json").write_text(json.dumps(clip_config))
    open_clip.add_model_config(tmp_path)
    state = load_file(clip_folder / "open_clip_model.safetensors")
    torch.save({name: value.half() for name, value in state.items()}, tmp_path / "weights.pt")
    found = load(tmp_path / "weights.pt", model="tiny-test")
    assert torch.allclose(run(found, TEXTS), run(load(clip_folder), TEXTS), atol=0.02)


def test_random_weights_have_their_own_generator():
    choice = choose("openclip", model="RN50", pretrained="random", seed=1)
    before = torch.get_rng_state()
    first, second = choice.build(), choice.build()
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(run(first, ["a dog"]), run(second, ["a dog"]))
    assert (first.dim, first.token_width) == (1024, 512)
    assert first.identity == choice.identity()
    assert run(first, ["a dog"]).std() > 0
