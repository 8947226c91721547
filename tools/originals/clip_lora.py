"""CLIP-LoRA's repository, https://github.com/MaxZanella/CLIP-LoRA: its updates of its CLIP.

The loss, which is part of one function with the data and the optimiser, is written out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tools.originals import fedmgp
from tools.originals.central import federate, small_weights
from tools.originals.federation import Method, Run, State, Tensors

REPOSITORY = "MaxZanella/CLIP-LoRA"
MARKS = ("loralib/layers.py", "run_utils.py")
RANK, BLOCKS = 2, {"vision": ("visual.", 4), "text": ("", 3)}
prepare = fedmgp.prepare


class Updated(nn.Module):
    """A CLIP that predicts with its texts of the classes."""

    def __init__(self, clip: Any, texts: Tensor) -> None:
        super().__init__()
        self.clip, self.texts = clip, texts

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, C]."""
        image = F.normalize(self.clip.encode_image(images), dim=-1)
        text = F.normalize(self.clip.encode_text(self.texts), dim=-1)
        logits: Tensor = self.clip.logit_scale.exp() * image @ text.t()
        return logits


class Trainer(fedmgp.Trainer):
    """Plain SGD on the cross-entropy."""

    def build_model(self) -> None:
        """Put updates into the CLIP."""
        clip, utils = import_module("clip.clip"), import_module("loralib.utils")
        model = clip.build_model(fedmgp.small_clip()._model.state_dict())
        args = SimpleNamespace(
            encoder="both", position="all", backbone="ViT-B/16", params=["q", "k", "v"], r=RANK,
            alpha=1, dropout_rate=0.25,
        )  # fmt: skip
        utils.apply_lora(args, model)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        utils.mark_only_lora_as_trainable(model)
        names = [f"a photo of a {name}." for name in self.dm.dataset.classnames]
        self.model = Updated(model, clip.tokenize(names))
        self.optim = import_module("Dassl.dassl.optim").build_optimizer(model, None)

    def forward_backward(self, batch: dict[str, Tensor]) -> None:
        """Take a step."""
        self.model_backward_and_update(F.cross_entropy(self.model(batch["img"]), batch["label"]))


def drive(run: Run, initial: Sequence[Tensors]) -> list[State]:
    """Train the original's updates; return a state per round, round 0 first."""
    places = {
        f"{ours}.{tower}": [
            f"clip.{prefix}transformer.resblocks.{block}.attn.{part}_proj.w_lora_{ours.upper()}"
            for block in range(blocks)
            for part in "qkv"
        ]
        for ours in "ab"
        for tower, (prefix, blocks) in BLOCKS.items()
    }
    with small_weights(import_module("clip.clip")):
        return federate(run, initial, Trainer(None, run), places)


METHODS = {
    "lora": Method(
        drive,
        values=("model.clip=small", "data.image_size=32", "local_epochs=1", f"lr={fedmgp.LR}",
                f"algorithm.rank={RANK}"),
        changes=("float32 throughout", "SGD without momentum and schedule", "clients and FedAvg",
                 "no dropout"),
    )
}  # fmt: skip
