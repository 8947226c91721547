"""Classes are compared once: those that an encoder cannot distinguish are refused, or warned of."""

from __future__ import annotations

import unicodedata

import pytest
import torch
from encoding import choose
from tensors import CPU

from fedray.base.errors import UserError
from fedray.language.descriptions import canonical_word, display_name
from fedray.language.distinct import equal_tokens, equal_vectors
from fedray.language.encoders import Tokens
from fedray.language.names import names_for
from fedray.language.tower import TextTower

EQUAL = "cannot distinguish the classes 0 and 2"


def tower(name, texts, insists=False, **params) -> TextTower:
    return TextTower(choose(name, **params), [[text] for text in texts], CPU, insists=insists)


def test_equal_vectors_are_found_up_to_rounding():
    vectors = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))
    assert equal_vectors(vectors) is None
    vectors[555] = vectors[301] * (1 + 1e-6)
    assert equal_vectors(vectors) == (301, 555)
    vectors[555] = vectors[301] + 1e-3
    assert equal_vectors(vectors) is None
    assert equal_vectors(torch.zeros(2, 4)) == (0, 1)


def test_equal_tokens_are_found_among_all_texts_of_a_class():
    ids = torch.tensor([[1, 2], [1, 3], [1, 2], [1, 4], [1, 2], [1, 3]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    assert equal_tokens(Tokens(ids, mask, ids[:, 0]), k=2) == (0, 2)
    mask[5, 1] = False
    assert equal_tokens(Tokens(ids, mask, ids[:, 0]), k=2) is None


@pytest.mark.parametrize(
    "texts",
    [
        ("Cat", "dog", "cat"),  # case
        ("a cat", "dog", "a  cat"),  # blanks
        ("猫", "dog", "狗"),  # a script without words in the vocabulary
        ("zebra", "dog", "yak"),  # unknown words
        (" ".join(["cat"] * 30), "dog", " ".join(["cat"] * 31)),  # both are cut
    ],
)
@pytest.mark.parametrize("read", [TextTower.frozen_prototypes, lambda tower: tower.token_width])
def test_texts_with_the_same_tokens_are_refused(bert_folder, texts, read):
    with pytest.raises(UserError, match=rf"text\.encoder=bert {EQUAL}: .*; rename one of them"):
        read(tower("bert", texts, path=str(bert_folder)))
    read(tower("bert", (*texts[:2], "a big animal"), path=str(bert_folder)))


def test_vectors_that_forget_the_order_of_words_are_refused(tmp_path):
    (tmp_path / "v.txt").write_text("sea 1 0\nlion 0 1\nhorse 1 1.5\n")
    texts = ("sea lion", "sea horse", "lion sea")
    with pytest.raises(UserError, match=f"{EQUAL}: 'sea lion' and 'lion sea' are the same to it"):
        tower("vectors", texts, path=str(tmp_path / "v.txt")).frozen_prototypes()


def test_controls_differ_for_different_texts_alone():
    for name in ("random", "orthogonal"):
        tower(name, ("Cat", "dog", "cat"), dim=8).frozen_prototypes()
        tower(name, ("Cat", "dog", "cat"), dim=8, per="class").frozen_prototypes()
        with pytest.raises(UserError, match=f"{EQUAL}: both have the text 'cat'"):
            tower(name, ("cat", "dog", "cat"), dim=8).frozen_prototypes()


def test_who_gave_the_names_is_warned(bert_folder, caplog):
    insisting = tower("bert", ("Cat", "dog", "cat"), insists=True, path=str(bert_folder))
    assert insisting.frozen_prototypes().shape == (3, 32)
    assert f"text.encoder=bert {EQUAL}: 'Cat' and 'cat' are the same to it" in caplog.text


def test_given_names_are_insisted_on(text_tower_of, caplog):
    names = [*"abcdefghi", "a"]
    keys = {"text.encoder": "random", "text.encoder.dim": 16, "algorithm.prompt_length": 0}
    text_tower_of("fedtsp", {**keys, "text.names": names}).frozen_prototypes()
    assert "cannot distinguish the classes 0 and 9" in caplog.text


def test_names_are_compared_and_written_composed():
    composed, decomposed = (unicodedata.normalize(form, "café au_lait") for form in ("NFC", "NFD"))
    assert canonical_word(decomposed) == canonical_word(composed.upper())
    assert display_name(decomposed) == "café au lait"
    with pytest.raises(UserError, match="the data's own class names in another order"):
        names_for(["tea", decomposed], [composed, "tea"])
