"""Every registered encoder and style describes itself; choices of them resolve completely."""

from __future__ import annotations

from typing import ClassVar

import pytest

from fedray.base.errors import UserError
from fedray.config import component
from fedray.language.descriptions import ClassDescriptions, display_name
from fedray.language.encoders import encoders
from fedray.language.styles import Short, TextStyle, class_texts, styles
from fedray.language.text_cache import cached_text_embeddings


def test_the_names():
    assert encoders.names() == [
        "align",
        "bert",
        "minilm",
        "openclip",
        "orthogonal",
        "random",
        "vectors",
    ]
    assert styles.names() == ["ensemble", "fine", "handcrafted", "long", "name", "plain", "short"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"name": "word2vec"}, r"there is no text encoder 'word2vec'"),
        ({"name": "minlm"}, r"there is no text encoder 'minlm'\. Did you mean 'minilm'\?"),
        ({"name": "minilm", "dim": 8}, r"unknown key 'dim' in text\.encoder\. Valid: pooling\."),
        ({"name": "bert", "model": "a", "path": "b"}, r"text\.encoder: has both model and path"),
        ({"name": "bert", "bert_compat": True, "pooling": "mean"}, r"reads the first position"),
        ({"name": "openclip", "path": "a", "pretrained": "b"}, r"has both pretrained and path"),
        ({"name": "openclip", "seed": 1}, r"text\.encoder: seed is for pretrained=random"),
        ({"name": "vectors"}, r"text\.encoder\.path is missing"),
    ],
)
def test_impossible_encoders(params, message):
    with pytest.raises(UserError, match=message):
        component("text encoder", key="text.encoder", **params)


def test_only_what_is_worth_it_is_cached(tmp_path):
    assert {entry.name for entry in encoders.entries() if not entry.cached} == {
        "random",
        "orthogonal",
    }
    cached_text_embeddings(component("text encoder", "random", dim=8).build(), ["cat"])
    assert not (tmp_path / "cache").exists()


class Repeat(TextStyle):
    """The class's name, several times."""

    name: ClassVar[str] = "repeat"
    times: int = 2

    def texts(
        self,
        descriptions: dict[str, ClassDescriptions] | None,
        class_names: list[str],
        template: str = "",
    ) -> list[list[str]]:
        return [[" ".join([display_name(name)] * self.times)] for name in class_names]


def test_a_style_may_have_parameters(monkeypatch):
    monkeypatch.setattr(styles, "_entries", dict(styles._entries))
    styles.add(Repeat)
    style = component("text style", "repeat", times=3).build()
    assert class_texts(style, ["ice_cream"]) == [["ice cream ice cream ice cream"]]
    assert component("text style", "short").build() == Short()
