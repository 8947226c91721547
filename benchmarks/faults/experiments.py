"""Small experiments for faults, which together hold every kind of state that a run can hold.

Clients take part more than once, some drop out, and one client joins in the middle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROUNDS = 8

_BASE: dict[str, Any] = {
    "rounds": ROUNDS,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "participation": 0.5,
    "join": {"clients": 1, "round": 4},
    "report": {"select": "test"},
    "faults": {"drop": 0.2},
    "data": {"clients": 5, "samples": 240, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "model": {"group": "mlp"},
}
_WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a photo of zero one two three four five six seven eight nine "
    ": . with small round long thin dark line loop"
)
_CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 8, "patch_size": 4, "width": 16, "layers": 2, "head_width": 16},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}

METHODS = ("scaffold", "fedmgp", "dp2fl", "fedtsp")
"""They hold control variates, prompt groups, validation images, and prompts at the server."""


def write_experiments(folder: Path) -> dict[str, Path]:
    """Write an experiment for each method, with random encoders; return the files by method."""
    files = {}
    for method in METHODS:
        tree = {**_BASE, "algorithm": {"name": method}, **_parts(method, folder)}
        files[method] = folder / f"{method}.yaml"
        files[method].write_text(yaml.safe_dump(tree), encoding="utf-8")
    return files


def _parts(method: str, folder: Path) -> Mapping[str, Any]:
    """Return the settings that only this method needs."""
    if method == "fedtsp":
        encoder = {"name": "bert", "path": str(_write_bert(folder / "bert"))}
        return {"text": {"encoder": encoder, "style": "handcrafted"}}
    if method in ("fedmgp", "dp2fl"):
        clip = {"name": "openclip", "path": str(_write_clip(folder / "clip"))}
        validated = {"validation_fraction": 0.2} if method == "dp2fl" else {}
        data = {**_BASE["data"], "samples": 120, **validated}
        return {"model": {"clip": clip}, "data": data}
    return {}


def _write_bert(folder: Path) -> Path:
    """Write a BERT of width 16 with random weights by save_pretrained; return the folder."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    folder.mkdir(exist_ok=True)
    vocabulary = _WORDS.split()
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,  # as wide as the models, which are not adapted then
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


def _write_clip(folder: Path) -> Path:
    """Write a CLIP for 8-pixel images with random weights as open_clip does."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    preprocess = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}
    config = {"model_cfg": _CLIP, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = open_clip.CLIP(**_CLIP).state_dict()
    save_file(weights, folder / "open_clip_model.safetensors")
    return folder
