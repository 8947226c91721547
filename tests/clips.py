"""Tiny CLIP models with random weights, written as open_clip's own tools write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedray.models.clip import ClipSpec, FrozenClip
from fedray.models.clip.frozen import clip_source

NAMES = ("cat", "small round dog", "fur animal")

CONFIG: dict[str, Any] = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 8, "patch_size": 4, "width": 32, "layers": 3, "head_width": 16},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 3},
}


class Pair(NamedTuple):
    """A frozen CLIP and open_clip's own model with the same weights."""

    clip: FrozenClip
    official: Any


def save_clip(folder: Path, *, custom: bool = False, **text: Any) -> Any:
    """Write a random CLIP; returns the whole model.

    Args:
        folder: where to.
        custom: whether text and image tower stand apart (`CustomTextCLIP`).
        **text: changes of `text_cfg`.
    """
    import open_clip
    from safetensors.torch import save_file

    config = {**CONFIG, "text_cfg": {**CONFIG["text_cfg"], **text}}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config).eval()
        with torch.no_grad():  # biases and norms that would show when they are forgotten
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    if custom:
        config["custom_text"] = True
    preprocess = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}
    described = {"model_cfg": config, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(described))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return model


def frozen(folder: Path) -> FrozenClip:
    """The CLIP in a folder, taken apart."""
    return FrozenClip(clip_source(ClipSpec(name="openclip", path=str(folder))))
