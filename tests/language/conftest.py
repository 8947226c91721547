"""Tiny models with random weights, written as real ones are; no hub, an own cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a photo of cat dog : an animal with fur small big round . ##s"
)

CLIP_CONFIG: dict[str, Any] = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 64, "layers": 1, "head_width": 32},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 3},
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> Path:
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("bert")
    words = WORDS.split()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=24,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def _save_clip(folder: Path, *, custom: bool = False, **text: Any) -> Any:
    """Write a random CLIP as open_clip's own tools do; returns the whole model."""
    import open_clip
    from safetensors.torch import save_file

    config = {**CLIP_CONFIG, "text_cfg": {**CLIP_CONFIG["text_cfg"], **text}}
    torch.manual_seed(0)
    model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config).eval()
    with torch.no_grad():  # biases and norms that would show when they are forgotten
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    if custom:
        config["custom_text"] = True
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return model


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clip")
    _save_clip(folder)
    return folder


@pytest.fixture(scope="session")
def save_clip():
    return _save_clip


@pytest.fixture(scope="session")
def clip_config():
    return CLIP_CONFIG
