"""pFedMMA's repository, https://github.com/sajjad-ucsb/pFedMMA: its adapters, loss and CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from tools.originals import fedmgp
from tools.originals.central import federate, small_weights
from tools.originals.federation import Method, Run, State, Tensors

REPOSITORY = "sajjad-ucsb/pFedMMA"
MARKS = ("trainers/pFedMMA.py", "federated_main.py")
WIDTH, SCALE, FIRST, LAST = 8, 0.1, 2, 3
"""The adapters; FIRST and LAST are the blocks of the text tower with one, from 1."""
prepare = fedmgp.prepare


def _places() -> dict[str, tuple[str]]:
    found = {}
    for index, block in enumerate(range(FIRST, LAST + 1)):
        for part in ("weight", "bias"):
            found[f"shared.{index}.{part}"] = f"shared_adapter.{block}.0.{part}"
            for ours, theirs in (("vision", "visual"), ("text", "text")):
                there = f"{theirs}_adapter.{block}"
                found[f"{ours}.{index}.down.{part}"] = f"{there}.down.0.{part}"
                found[f"{ours}.{index}.up.{part}"] = f"{there}.up.{part}"
    return {ours: (f"adapter_learner.{theirs}",) for ours, theirs in found.items()}


def drive(run: Run, initial: Sequence[Tensors]) -> list[State]:
    """Train the original's model; return a state per round, round 0 first."""
    module = import_module("trainers.pFedMMA")
    adapter = SimpleNamespace(
        TEXT_CTX_INIT="a photo of a", ADAPTER_START=FIRST, ADAPTER_END=LAST, ADAPTER_DIM=WIDTH,
        ADAPTER_SCALE=SCALE, PREC="fp32",
    )  # fmt: skip
    model = SimpleNamespace(BACKBONE=SimpleNamespace(NAME="small"), INIT_WEIGHTS="")
    config = SimpleNamespace(
        TRAINER=SimpleNamespace(MMADAPTER=adapter), INPUT=SimpleNamespace(SIZE=(32, 32)),
        OPTIM=None, MODEL=model,
    )  # fmt: skip
    with small_weights(module):
        trainer = module.pFedMMA(config, run)
        learner: Any = trainer.model.adapter_learner
        learner.visual_adapter_func = lambda i: learner.return_visual_adapter(max(i - 1, 0))
        return federate(
            run, initial, trainer, _places(), averaged=lambda name: name.startswith("shared.")
        )


METHODS = {
    "pfedmma": Method(
        drive,
        values=("model.clip=small", "data.image_size=32", "local_epochs=1", f"lr={fedmgp.LR}",
                f"algorithm.width={WIDTH}", f"algorithm.scale={SCALE}", "algorithm.depth=2"),
        changes=("float32 throughout", "SGD without momentum and schedule",
                 "adapters beside the last two blocks of each tower, which have 4 and 3",
                 "text features are computed in every test, not in the first one alone",
                 "the first round has no more clients than the others"),
    )
}  # fmt: skip
