from __future__ import annotations

import pytest
import torch

from fedray.config import validate
from fedray.errors import UserError
from fedray.language.encoders import EncoderSpec, Tokens, build_encoder, encoder_identity
from fedray.language.prototypes import cached_text_embeddings

TEXTS = ["cat", "dog", "cat", "ship"]


@pytest.mark.parametrize("name", ["random", "orthogonal"])
def test_vectors_depend_on_seed_and_text_only(name):
    spec = EncoderSpec(name=name, dim=16, seed=3)
    encoder = build_encoder(spec)
    found = encoder.features(TEXTS)
    assert found.shape == (4, 16)
    assert encoder.dim == 16
    assert torch.equal(found, cached_text_embeddings(spec, TEXTS))
    assert torch.equal(found[0], found[2])
    assert torch.allclose(found[:2], encoder.features(TEXTS[:2]))
    other = build_encoder(EncoderSpec(name=name, dim=16, seed=4))
    assert not torch.allclose(found, other.features(TEXTS))
    assert encoder.identity == encoder_identity(spec) != other.identity


def test_orthogonal_rows_are_orthonormal():
    rows = build_encoder(EncoderSpec(name="orthogonal", dim=8)).features([str(i) for i in range(8)])
    assert torch.allclose(rows @ rows.T, torch.eye(8), atol=1e-6)


def test_random_directions_are_gaussian():
    rows = build_encoder(EncoderSpec(name="random")).features([str(i) for i in range(200)])
    assert rows.shape == (200, 384)
    assert abs(float(rows.mean())) < 1e-3
    assert abs(float(rows.norm(dim=1).mean()) - 1) < 0.01


def test_nothing_is_drawn_from_the_global_generator():
    before = torch.get_rng_state()
    build_encoder(EncoderSpec(name="random")).features(TEXTS)
    build_encoder(EncoderSpec(name="orthogonal")).features(TEXTS)
    assert torch.equal(before, torch.get_rng_state())


def test_too_many_texts_for_orthogonal():
    encoder = build_encoder(EncoderSpec(name="orthogonal", dim=3))
    with pytest.raises(UserError, match=r"3 directions for 4 texts; set text\.encoder\.dim=4"):
        encoder.features("abcd")


def test_controls_have_no_tokens():
    encoder = build_encoder(EncoderSpec(name="random"))
    assert not encoder.promptable
    tokens = Tokens(torch.zeros(1, 1).long(), torch.ones(1, 1).bool(), torch.zeros(1).long())
    for ask in (
        lambda: encoder.token_width,
        lambda: encoder.tokenize(["cat"]),
        lambda: encoder.embed(tokens),
        lambda: encoder.encode(torch.zeros(1, 1, 1), tokens),
    ):
        with pytest.raises(UserError, match=r"random reads no tokens.*prompt_length=0"):
            ask()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "word2vec"}, r"text\.encoder\.name: "),
        ({"name": "minilm", "dim": 8}, r"dim=8 is for random and orthogonal, not for minilm; rem"),
        ({"name": "minilm", "path": "x"}, r"path=x is for bert and openclip and vectors, not"),
        ({"name": "random", "pooling": "cls"}, r"pooling=cls is for minilm and bert, not for rand"),
        ({"name": "minilm", "bert_compat": True}, r"bert_compat=True is for bert, not for minilm"),
        (
            {"name": "bert", "pretrained": "openai"},
            r"pretrained=openai is for openclip, not for be",
        ),
        ({"name": "bert", "seed": 1}, r"seed=1 is for random and orthogonal and openclip, not"),
        ({"name": "bert", "model": "a", "path": "b"}, r"has both model and path"),
        ({"name": "openclip", "path": "a", "pretrained": "b"}, r"has both pretrained and path"),
        ({"name": "openclip", "seed": 1}, r"seed is for text\.encoder\.pretrained=random"),
        ({"name": "bert", "bert_compat": True, "pooling": "mean"}, r"reads the first position"),
        ({"name": "vectors"}, r"vectors needs text\.encoder\.path, a file of word vectors"),
        ({"name": "bert", "poling": "cls"}, r"unknown key 'poling' in text\.encoder.*'pooling'"),
    ],
)
def test_impossible_choices(spec, message):
    with pytest.raises(UserError, match=message):
        validate(EncoderSpec, spec, "text.encoder")
