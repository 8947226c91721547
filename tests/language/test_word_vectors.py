"""Word vectors: a text is the mean of its words, and words without a vector are named."""

from __future__ import annotations

import pytest
import torch

from fedray.base.errors import UserError
from fedray.config import component
from fedray.language.encoders import EncoderChoice, TextEncoder
from fedray.language.text_cache import cached_text_embeddings

GLOVE = """, 9 9 9
cat 1 0 0
ice 0 2 0
cream 0 0 4
Paris 5 5 5
paris 7 7 7
. . . 8 8 8
cat 6 6 6
"""


def choose(path) -> EncoderChoice:
    return component("text encoder", "vectors", path=str(path)).build()


def written(path, text=GLOVE) -> EncoderChoice:
    path.write_text(text, encoding="utf-8")
    return choose(path)


def encoder(path, text=GLOVE) -> TextEncoder:
    return written(path, text).build()


@pytest.mark.parametrize("name", ["glove.txt", "word2vec.txt"])
def test_a_text_is_the_mean_of_its_words(tmp_path, name):
    text = GLOVE if "glove" in name else f"10 3\n{GLOVE}"
    found = encoder(tmp_path / name, text)
    assert found.dim == 3
    features = found.features(["cat", "ice_cream", "ice cream cat", "cat"])
    third = [1 / 3, 2 / 3, 4 / 3]
    assert features.dtype == torch.float32
    expected = torch.tensor([[1, 0, 0], [0, 1, 2], third, [1, 0, 0]])
    torch.testing.assert_close(features, expected)


@pytest.mark.parametrize(
    ("text", "vector"),
    [
        ("Paris", [5, 5, 5]),  # as it is
        ("CAT.", [1, 0, 0]),  # in lower case, without what stands around it; the first of two
        ("(paris)", [7, 7, 7]),
        ("cream/cat", [0.5, 0, 2]),
    ],
)
def test_how_a_word_is_looked_up(tmp_path, text, vector):
    assert encoder(tmp_path / "v.txt").features([text])[0].tolist() == vector


def test_missing_words_are_named_once(tmp_path):
    found = encoder(tmp_path / "v.txt")
    with pytest.raises(UserError, match=r"v.txt has no vector for 3 words: Dog, of, sea-dog; set"):
        found.features(["Dog", "cat of ice", "Dog", "sea-dog"])
    with pytest.raises(UserError, match=r"the text '\.\.\.' has no word"):
        found.features(["..."])


def test_identity_is_the_content(tmp_path):
    one, same = written(tmp_path / "v.txt"), written(tmp_path / "v.txt").identity()
    assert one.identity() == one.build().identity == same
    embeddings = cached_text_embeddings(one, ["cat"])
    assert embeddings.tolist() == [[1, 0, 0]]
    other = written(tmp_path / "v.txt", GLOVE.replace("cat 1", "cat 3.5"))
    assert other.identity() != same
    assert cached_text_embeddings(other, ["cat"]).tolist() == [[3.5, 0, 0]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cat one 0 0\n",
        "ten three\ncat 1 0 zero\n",
        "2 3\ncat 1 0 0\nowl 1 0\n",
        "cat 1 0 0\ndog 1 nan 0\n",
        "2 3\ncat 1 0 0\ndog 1 . 0\n",
        None,
    ],
)
def test_files_that_cannot_be_read(tmp_path, text):
    path = tmp_path / "v.txt"
    choice = choose(path) if text is None else written(path, text)
    with pytest.raises(UserError, match=r"text\.encoder\.path=.*v\.txt"):
        choice.build().features(["cat", "dog"])


def test_an_experiment_with_word_vectors(tmp_path, text_tower_of):
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    written(tmp_path / "v.txt", "".join(f"{name} {i} 1\n" for i, name in enumerate(names)))
    encoder = {"name": "vectors", "path": str(tmp_path / "v.txt")}
    changes = {"text.encoder": encoder, "text.style": "name", "model.feature_dim": 2}
    tower = text_tower_of("fedglcl", changes)
    assert tower.frozen_prototypes().tolist() == [[i, 1] for i in range(10)]
