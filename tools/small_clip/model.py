"""The two towers, built by open_clip, and the folder that open_clip's `local-dir:` loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedray.config import component
from fedray.data.imageset import TEST
from fedray.language.encoders.openclip import OpenClipText
from fedray.language.styles import class_texts
from fedray.models import Pixels
from fedray.models.clip import load_clip
from fedray.models.clip.frozen import OPENAI_PIXELS
from fedray.models.clip.vision import VisionTower
from fedray.streams import Streams, torch_seeded
from tools.small_clip.images import decode, split_rows
from tools.small_clip.spec import Spec

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"


def model_config(spec: Spec, vocabulary: int) -> dict[str, Any]:
    """Return open_clip's description of the architecture."""
    text, image = spec.text, spec.image
    return {
        "embed_dim": spec.embed_dim,
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


def build(spec: Spec, vocabulary: int) -> nn.Module:
    """Build an `open_clip.CustomTextCLIP` with random weights drawn from the seed."""
    import open_clip

    seed = Streams(spec.seed).entropy("pretrain_weights")
    with torch_seeded(seed, torch.device("cpu")):  # open_clip draws from the global generator
        model: nn.Module = open_clip.CustomTextCLIP(**model_config(spec, vocabulary))
    nn.init.constant_(
        model.get_parameter("logit_scale"), float(torch.tensor(spec.image.scale).log())
    )
    return model


class Towers:
    """Both towers of a model, run by fedray's own code, which cuts texts behind their end.

    Args:
        model: an `open_clip.CustomTextCLIP`; all its parameters are frozen.
        folder: holds the tokenizer.
    """

    def __init__(self, model: nn.Module, folder: Path) -> None:
        import open_clip

        text = model.get_submodule("text")
        length: int = text.context_length  # type: ignore[assignment]
        tokenizer = open_clip.tokenizer.HFTokenizer(str(folder), context_length=length)
        self.device = model.get_parameter("logit_scale").device
        self.text = OpenClipText(text, tokenizer, "")
        self._vision = VisionTower(model.get_submodule("visual"), **OPENAI_PIXELS).to(self.device)
        model.requires_grad_(False)

    def text_features(self, texts: list[str]) -> Tensor:
        """Return unit text features [T, embed_dim] in float32."""
        tokens = self.text.tokenize(texts)
        return F.normalize(self.text.encode(self.text.embed(tokens), tokens).float(), dim=1)

    def image_features(self, images: Tensor) -> Tensor:
        """Return unit image features [B, embed_dim] in float32 of uint8 images [B, 3, S, S]."""
        embedded = self._vision.embed(Pixels.of(images.to(self.device)).values)
        return F.normalize(self._vision.encode(embedded)[0].float(), dim=1)


def write_model(spec: Spec, vocabulary: int, weights: dict[str, Tensor], folder: Path) -> None:
    """Write configuration and weights, in half precision and CLIP's own layout."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    preprocessing = {**OPENAI_PIXELS, "interpolation": "bicubic", "resize_mode": "shortest"}
    described = {"model_cfg": model_config(spec, vocabulary), "preprocess_cfg": preprocessing}
    (folder / CONFIG).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    halved = {name.removeprefix("text."): weights[name].half().contiguous() for name in weights}
    save_file(halved, folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)  # safetensors leaves it to its owner alone


@torch.no_grad()
def zero_shot(folder: Path, spec: Spec) -> dict[str, dict[str, float]]:
    """Return for each held-out set the share of test images whose class has the nearest text.

    The text of a class is "A photo of a {name}."; chance is one over the number of classes.

    Raises:
        UserError: if a set is missing.
    """
    cpu = torch.device("cpu")
    clip = load_clip(component("CLIP", "openclip", path=str(folder)).build(), cpu)
    style = component("text style", "handcrafted").build()
    scores = {}
    for part in spec.held_out:
        images = decode(part, spec.image.size)
        rows = split_rows(images, TEST)
        texts = [text for (text,) in class_texts(style, images.class_names)]
        anchors = F.normalize(clip.text.features(texts), dim=1)
        labels = torch.from_numpy(images.labels[rows])
        correct = 0
        for some in torch.from_numpy(rows).split(500):
            pixels = Pixels.of(torch.from_numpy(images.images[some.numpy()]))
            features, _ = clip.vision.encode(clip.vision.embed(pixels.values))
            correct += int(((features @ anchors.T).argmax(1) == labels[: len(some)]).sum())
            labels = labels[len(some) :]
        chance = 1 / len(images.class_names)
        scores[part.name] = {"accuracy": correct / len(rows), "chance": chance, "images": len(rows)}
    return scores
