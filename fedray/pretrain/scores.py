"""Zero-shot accuracy of a model's folder on official test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedray.config import Component
from fedray.data.imageset import TEST
from fedray.language.styles import class_texts, text_style
from fedray.pretrain.images import decode, normalise, split_rows
from fedray.pretrain.spec import ImagesConfig, PretrainConfig
from fedray.pretrain.stages import encode

_CHUNK = 500


def load(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer as open_clip loads them, frozen, in float32."""
    import open_clip

    name = f"local-dir:{folder}"
    model = open_clip.create_model(name, require_pretrained=True)
    return model.requires_grad_(False).eval(), open_clip.get_tokenizer(name)


def name_of(images: ImagesConfig) -> str:
    """What a set is called in tables: its folder, or its source."""
    return images.source.name if images.root is None else Path(images.root).name


def zero_shot(folder: Path, config: PretrainConfig) -> dict[str, dict[str, float]]:
    """For each held-out set the share of test images whose class's text is nearest.

    The text of a class is "A photo of a {name}."; chance is one over the number of classes.

    Raises:
        UserError: when a set is not there.
    """
    model, tokenizer = load(folder)
    style = text_style(Component(name="handcrafted"))
    found = {}
    for part in config.held_out:
        images = decode(part, config.image.size)
        rows = split_rows(images, TEST)
        texts = [text for (text,) in class_texts(style, images.class_names)]
        labels = torch.from_numpy(images.labels[rows])
        guesses = classify(model, tokenizer, torch.from_numpy(images.images[rows]), texts)
        found[name_of(part)] = {
            "accuracy": float((guesses == labels).float().mean()),
            "chance": 1 / len(images.class_names),
            "images": len(rows),
        }
    return found


@torch.no_grad()
def classify(model: Any, tokenizer: Any, pixels: Tensor, texts: list[str]) -> Tensor:
    """For each of uint8 images [n, 3, S, S] the position of the nearest text."""
    anchors = F.normalize(encode(model, tokenizer, texts), dim=1)
    parts = [model.visual(normalise(part)) @ anchors.T for part in torch.split(pixels, _CHUNK)]
    return torch.cat(parts).argmax(1)
