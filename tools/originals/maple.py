"""MaPLe's repository, github.com/muzairkhattak/multimodal-prompt-learning: its VPT and IVLP."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from tools.originals import fedmgp
from tools.originals.central import Places, federate, small_weights
from tools.originals.federation import Method, Run, State, Tensors

REPOSITORY = "muzairkhattak/multimodal-prompt-learning"
MARKS = ("trainers/vpt.py", "trainers/independentVL.py")
LENGTH, VISION, TEXT = 2, 4, 3
"""Tokens of a prompt; blocks of the small CLIP's towers."""


def prepare(checkout: Path) -> None:
    """Make the checkout's modules importable, and let it build fedray's small CLIP."""
    fedmgp.prepare(checkout)
    for name in fedmgp.DASSL:
        if name.startswith(".dassl"):
            sys.modules[name[1:]] = sys.modules[f"Dassl{name}"]
    sys.modules["dassl.engine"].TrainerX = fedmgp.Trainer  # type: ignore[attr-defined]
    sys.modules["dassl.engine"].TRAINER_REGISTRY = SimpleNamespace(  # type: ignore[attr-defined]
        register=lambda: lambda trainer: trainer
    )


def deeper(tower: str, blocks: int) -> list[str]:
    """Return the names of the prompts in the blocks after a tower's first."""
    return [f"{tower}.transformer.resblocks.{i}.VPT_shallow" for i in range(1, blocks)]


VISUAL = {"visual": ["image_encoder.VPT", *deeper("image_encoder", VISION)]}
BOTH = {**VISUAL, "text": ["prompt_learner.ctx", *deeper("text_encoder", TEXT)]}


def drive(
    file: str, name: str, places: Places, run: Run, initial: Sequence[Tensors]
) -> list[State]:
    """Train the original's prompts; return a state per round, round 0 first."""
    module = import_module(f"trainers.{file}")
    prompts = SimpleNamespace(
        N_CTX_VISION=LENGTH, N_CTX_TEXT=LENGTH, PROMPT_DEPTH_VISION=VISION, PROMPT_DEPTH_TEXT=TEXT,
        CTX_INIT="a photo of a", PREC="fp32",
    )  # fmt: skip
    config = SimpleNamespace(
        TRAINER=SimpleNamespace(**{name: prompts}),
        INPUT=SimpleNamespace(SIZE=(32, 32)),
        MODEL=SimpleNamespace(BACKBONE=SimpleNamespace(NAME="small"), INIT_WEIGHTS=""),
        OPTIM=None,
    )
    with small_weights(module):
        return federate(run, initial, getattr(module, name)(config, run), places)


def _method(file: str, name: str, places: Places) -> Method:
    values = ("model.clip=small", "data.image_size=32", "local_epochs=1", f"lr={fedmgp.LR}",
              f"algorithm.length={LENGTH}")  # fmt: skip
    changes = ("float32 throughout", "SGD without momentum and schedule", "clients and FedAvg")
    return Method(partial(drive, file, name, places), values=values, changes=changes)


METHODS = {
    "vpt": _method("vpt", "VPT", VISUAL),
    "ivlp": _method("independentVL", "IVLP", BOTH),
}
