"""The folder of a model as open_clip's `local-dir:` reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedray.pretrain.spec import PretrainConfig

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's own, by channel, of pixels in 0..1."""

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"


def model_config(config: PretrainConfig, vocabulary: int) -> dict[str, Any]:
    """open_clip's description of the architecture."""
    text, image = config.text, config.image
    return {
        "embed_dim": config.embed_dim,
        "vision_cfg": {
            "image_size": image.size,
            "patch_size": image.patch,
            "width": image.width,
            "layers": image.layers,
            "head_width": image.head_width,
        },
        "text_cfg": {
            "context_length": text.context_length,
            "vocab_size": vocabulary,
            "width": text.width,
            "heads": text.heads,
            "layers": text.layers,
            "hf_tokenizer_name": "tokenizer.json",
        },
    }


def build(config: PretrainConfig, vocabulary: int, seed: int) -> Any:
    """An open_clip `CLIP` with random weights drawn from `seed`."""
    import open_clip

    described = model_config(config, vocabulary)
    # open_clip draws from the CPU's global generator alone: it is put back, no other is touched.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = open_clip.model.CLIP(**described)
    nn.init.constant_(model.logit_scale, float(torch.tensor(config.image.scale).log()))
    return model


def write_model(
    config: PretrainConfig, vocabulary: int, weights: dict[str, Tensor], folder: Path
) -> None:
    """Write configuration and weights, in half precision, next to the tokenizer's files."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "model_cfg": model_config(config, vocabulary),
        "preprocess_cfg": {
            "mean": MEAN,
            "std": STD,
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    }
    text = json.dumps(described, indent=1) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    halved = {name: tensor.half().contiguous() for name, tensor in weights.items()}
    save_file(halved, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)  # safetensors leaves it to its owner alone
