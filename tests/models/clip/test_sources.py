"""The registry of CLIPs: what `model.clip` may say, and what it gives."""

from __future__ import annotations

import os

import pytest

from fedray.base.errors import UserError
from fedray.config import component
from fedray.models.clip import small_clip_folder


def test_the_small_one_is_the_folder_of_the_package():
    source = component("CLIP", "small").build().source()
    assert source.folder == small_clip_folder()


def test_equal_choices_are_one():
    path = str(small_clip_folder())
    first, second = (component("CLIP", "openclip", path=path).build() for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != component("CLIP", "small").build()


@pytest.mark.parametrize(
    ("chosen", "match"),
    [
        ({"name": "small", "seed": 1}, r"unknown key 'seed' in model\.clip"),
        ({"name": "openclip", "pretrained": "openai", "path": "x"}, r"has both pretrained and pa"),
        ({"name": "opencIip"}, r"no CLIP 'opencIip'\. Did you mean 'openclip'\?"),
        (
            {"name": "openclip", "seed": -1},
            r"model\.clip\.seed: input should be greater than or equal to 0",
        ),
    ],
)
def test_what_cannot_be_chosen(chosen, match):
    with pytest.raises(UserError, match=match):
        component("CLIP", key="model.clip", **chosen)


def test_files_that_were_written_anew_are_another_clip(tmp_path):
    other = component("CLIP", "openclip", path=str(tmp_path)).build()
    assert (component("CLIP", "small").build().written, other.written) == ((), ())
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        before = other.written
        (tmp_path / name).write_text("{}")
        assert other.written != before
    os.utime(tmp_path / name, ns=(1, 1))
    assert 1 in other.written
    assert component("CLIP", "openclip", path=str(tmp_path / name)).build().written == (1,)
