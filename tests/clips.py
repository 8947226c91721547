"""Tiny CLIP models with random weights, written as open_clip's own tools write them.

And what tests of prompted models share: class names, drawn prompts, noise, gradients.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from tensors import CPU
from torch import Tensor

from fedray.config import component
from fedray.core import algorithms
from fedray.models.clip import ClipChoice, FrozenClip, load_clip
from fedray.models.prompted import PromptedClip

NAMES = ("cat", "small round dog", "fur animal")
DIGITS = ("zero", "one", "two", "three", "four")
M = TypeVar("M", bound=PromptedClip)

CONFIG: dict[str, Any] = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 8, "patch_size": 4, "width": 32, "layers": 3, "head_width": 16},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 3},
}


class Pair(NamedTuple):
    """A frozen CLIP and open_clip's own model with the same weights."""

    clip: FrozenClip
    official: Any


def save_clip(
    folder: Path, *, custom: bool = False, config: dict[str, Any] = CONFIG, **text: Any
) -> Any:
    """Write a random CLIP; returns the whole model.

    Args:
        folder: where to.
        custom: whether text and image tower stand apart (`CustomTextCLIP`).
        config: its shape.
        **text: changes of `text_cfg`.
    """
    import open_clip
    from safetensors.torch import save_file

    config = {**config, "text_cfg": {**config["text_cfg"], **text}}
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
    return FrozenClip(choice(path=str(folder)).source())


def choice(**params: Any) -> ClipChoice:
    """A choice among open_clip's models."""
    return component("CLIP", "openclip", **params).build()


def clip_of(folder: Path) -> FrozenClip:
    """The CLIP of a folder; the same object for all who ask."""
    chosen = choice(path=str(folder))
    return load_clip(chosen, CPU, chosen.written)


def prompted(method: str, clip: FrozenClip, names: Sequence[str] = DIGITS, **hparams: Any) -> Any:
    """A method's model, without initial values, with these hyper-parameters."""
    kind: Any = algorithms.get(method)
    return kind(**hparams).sized_model(clip, names, 0)


def drawn(model: M, seed: int = 0) -> M:
    """The model with initial values."""
    model.initialise(torch.Generator().manual_seed(seed))
    return model


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """The loss's gradient in every parameter; zero where it does not depend on it."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))
