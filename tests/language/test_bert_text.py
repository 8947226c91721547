from __future__ import annotations

import json
import shutil

import torch
from encoding import choose, run

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
