"""Tiny models with random weights, written as real ones are; no hub, a cache for each test."""

from __future__ import annotations

from pathlib import Path

import clips
import pytest
import torch
from encoding import save_bert

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a photo of cat dog : an animal with fur small big round . ##s"
)
ALIGN_WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a photo of seven eight small round with long line cat dog fur"
)


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def text_tower_of(assemble):
    """`text_tower_of("fedtsp", {"text.style": "name"})` is the text encoder of an experiment."""
    from fedray.runtime.assembly import text_tower

    def tower_of(algorithm, changes=None):
        assembly = assemble(algorithm, changes)
        return text_tower(assembly.experiment, assembly.setting, torch.device("cpu"))

    return tower_of


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"), WORDS.split(), 24, width=32)


@pytest.fixture(scope="session")
def align_folder(tmp_path_factory) -> Path:
    """An ALIGN of width 16 that projects to 10, as save_pretrained writes it."""
    from transformers import AlignConfig, AlignModel, BertTokenizer

    folder = tmp_path_factory.mktemp("tiny_align")
    words = ALIGN_WORDS.split()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    text = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 24,
        "initializer_range": 0.5,
        "pad_token_id": 0,
    }
    vision = {
        "image_size": 32,
        "hidden_dim": 16,
        "depthwise_padding": [],
        "in_channels": [8],
        "out_channels": [8],
        "kernel_sizes": [3],
        "strides": [1],
        "num_block_repeats": [1],
        "expand_ratios": [1],
        "num_hidden_layers": 1,
        "width_coefficient": 0.25,
        "depth_coefficient": 0.1,
    }
    config = AlignConfig(text_config=text, vision_config=vision, projection_dim=10)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AlignModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clip")
    clips.save_clip(folder)
    return folder


@pytest.fixture(scope="session")
def save_clip():
    return clips.save_clip


@pytest.fixture(scope="session")
def clip_config():
    return clips.CONFIG
