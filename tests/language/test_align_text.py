"""ALIGN's text tower on a small model made from its configuration."""

from __future__ import annotations

import pytest

from fedray.base.errors import UserError
from fedray.config import component


@pytest.fixture
def folder(align_folder):
    return align_folder


def choose(folder, name="align"):
    return component("text encoder", name, path=str(folder)).build()


def test_the_width_is_known_before_the_weights_are_loaded(folder):
    choice = choose(folder)
    assert choice.width() == choice.build().dim == 10
    assert choice.identity() == choice.build().identity
    assert choice.identity().startswith("align:")


def test_a_bert_is_no_align(tiny_bert):
    with pytest.raises(UserError, match=r"kind 'bert'; give another text\.encoder"):
        choose(tiny_bert).build()


def test_weights_without_the_text_tower_are_refused(folder, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    kept = {name: w for name, w in weights.items() if name != "text_projection.weight"}
    save_file(kept, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 weights, first text_projection\.weight"):
        choose(broken).build()
