from __future__ import annotations

import shutil

import pytest
import torch
from encoding import choose
from torch import Tensor

from fedray.base.errors import UserError
from fedray.language.encoders import EncoderChoice, TextEncoder, encoders
from fedray.language.prototypes import initial_prompts, mean_of_texts, text_prototypes
from fedray.language.text_cache import cached_text_embeddings

TEXTS = [
    ["a photo of a cat : fur", "a photo of a cat : small round", "a photo of a cat : a ."],
    ["a photo of a dog : big", "a photo of a dog : an animal with fur", "a photo of a dog : with"],
]
FLAT = [text for texts in TEXTS for text in texts]


@pytest.fixture(params=["bert", "openclip", "align"])
def choice(request, bert_folder, clip_folder, align_folder) -> EncoderChoice:
    folders = {"bert": bert_folder, "openclip": clip_folder, "align": align_folder}
    return choose(request.param, path=str(folders[request.param]))


@pytest.fixture
def encoder(choice) -> TextEncoder:
    return choice.build()


def prompts(encoder: TextEncoder, m: int, classes: int = 2) -> Tensor:
    drawn = initial_prompts(classes, m, encoder.token_width, torch.Generator().manual_seed(0))
    return drawn.requires_grad_()


def under(encoder: TextEncoder, texts: list[str], v: Tensor, k: int, **options) -> Tensor:
    tokens = encoder.tokenize(texts)
    return text_prototypes(encoder, tokens, encoder.embed(tokens), v, k, **options)


def test_is_the_mean_over_the_texts_of_a_class(encoder):
    v = prompts(encoder, 2)
    single = [under(encoder, FLAT[i::3], v, 1) for i in range(3)]
    assert torch.allclose(under(encoder, FLAT, v, 3), sum(single) / 3, atol=1e-5)


def test_m_0_is_the_frozen_text(encoder):
    found = under(encoder, FLAT, prompts(encoder, 0), 3)
    assert torch.allclose(found, mean_of_texts(encoder.features(FLAT), 3), atol=1e-6)


def test_in_parts_and_at_once(encoder):
    whole, parts = prompts(encoder, 2), prompts(encoder, 2)
    expected = under(encoder, FLAT, whole, 3)
    found = under(encoder, FLAT, parts, 3, batch=25)
    assert torch.allclose(found, expected, atol=1e-6)
    found[:, 0].sum().backward()
    expected[:, 0].sum().backward()
    assert torch.allclose(parts.grad, whole.grad, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(under(encoder, FLAT, parts, 3, batch=25), expected, atol=1e-6)


# --- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """Which encoders were loaded."""
    made: list[str] = []

    def counted(kind: type[EncoderChoice]) -> None:
        build = kind.build

        def build_and_count(choice: EncoderChoice) -> TextEncoder:
            made.append(choice.name)
            return build(choice)

        monkeypatch.setattr(kind, "build", build_and_count)

    for name in ("bert", "openclip", "align"):
        counted(encoders.get(name))
    return made


def stored(tmp_path) -> list:
    return sorted((tmp_path / "cache" / "text").glob("*/features.npy"))


def test_a_cached_answer_needs_no_encoder(choice, encoder, loads, tmp_path):
    first = cached_text_embeddings(choice, FLAT)
    assert torch.equal(first, encoder.features(FLAT))
    assert torch.equal(cached_text_embeddings(choice, FLAT), first)
    assert len(loads) == 1
    assert len(stored(tmp_path)) == 1


def test_other_texts_and_other_encoders_are_other_answers(bert_folder, loads, tmp_path):
    choice = choose("bert", path=str(bert_folder))
    cached_text_embeddings(choice, FLAT)
    cached_text_embeddings(choice, FLAT[::-1])
    cached_text_embeddings(choose("bert", path=str(bert_folder), pooling="mean"), FLAT)
    assert len(loads) == len(stored(tmp_path)) == 3
    copy = shutil.copytree(bert_folder, tmp_path / "copy")
    cached_text_embeddings(choose("bert", path=str(copy)), FLAT)
    assert len(loads) == 3  # the same content elsewhere


def test_prompts_past_the_text_are_read_by_bert_up_to_its_limit(bert_folder):
    encoder = choose("bert", path=str(bert_folder)).build()
    texts = ["a cat .", "a dog ."]  # 5 tokens with [CLS] and [SEP]
    v = prompts(encoder, 9)
    with pytest.raises(UserError, match=r"prompt_length=9 .*\(5 tokens\).*past_text=true"):
        under(encoder, texts, v, 1)
    under(encoder, texts, v, 1, past_text=True)[:, 0].sum().backward()
    assert (v.grad.abs().sum(-1) > 0).all(), "every context token is attended"
    alone = under(encoder, ["a dog : big fur .", "a cat : big fur ."], v, 1, past_text=True)
    assert torch.equal(alone, under(encoder, texts, v, 1, past_text=True)), "nothing is left of it"
    with pytest.raises(UserError, match=r"prompt_length=25 is more than the text encoder reads"):
        under(encoder, texts, prompts(encoder, 25), 1, past_text=True)


def test_clip_reads_the_old_end_and_sees_no_prompt_token_behind_it(clip_folder):
    encoder = choose("openclip", path=str(clip_folder)).build()
    text = ["a photo of a cat."]
    end = int(encoder.tokenize(text).read[0])
    v = prompts(encoder, end + 4, classes=1)
    under(encoder, text, v, 1, past_text=True)[:, 0].sum().backward()
    seen = v.grad[0].abs().sum(-1) > 0
    assert seen[: end + 1].all()
    assert not seen[end + 1 :].any()


def test_past_text_changes_nothing_where_the_prompt_fits(encoder):
    v = prompts(encoder, 3)
    assert torch.equal(under(encoder, FLAT, v, 3), under(encoder, FLAT, v, 3, past_text=True))
