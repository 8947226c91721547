"""The training loop of one worker; Ray Train runs several of them, or this process one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.runtime.memory import keep_freed_memory
from fedray.storage.files import replace_whole
from fedray.streams import Streams
from tools.small_clip import texts
from tools.small_clip.images import training_pool
from tools.small_clip.model import Towers, build
from tools.small_clip.spec import Spec
from tools.small_clip.stages import ImageStage, Stage, TextStage

CHECKPOINT, EPOCHS = "checkpoint.pt", "epochs.jsonl"
_WARM_UP = 0.05
"""Share of the steps of a stage in which the learning rate rises."""


@dataclass(frozen=True)
class EpochRecord:
    """One epoch, as a line of epochs.jsonl.

    Attributes:
        stage: text or image.
        epoch: from 1.
        epochs: epochs of the whole stage.
        loss: mean over steps and workers.
        seconds: wall time.
        rows: texts or images that were seen, over all workers.
    """

    stage: str
    epoch: int
    epochs: int
    loss: float
    seconds: float
    rows: int


@dataclass(frozen=True)
class WorkerRank:
    """The place of a worker among all workers, and its device."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")

    def share(self, count: int) -> slice:
        """Return the rows of this worker in a batch; all shares are equally large."""
        size = count // self.world
        return slice(self.rank * size, (self.rank + 1) * size)


def train(spec: Spec, out: Path, worker: WorkerRank, report: Callable[[EpochRecord], None]) -> None:
    """Train both stages from the folder's checkpoint on, and write one after every epoch.

    Args:
        spec: what to train, and how.
        out: the run's folder, shared by all workers; holds the files of `texts.prepare`.
        worker: the place of this worker.
        report: called by every worker after every epoch.
    """
    keep_freed_memory()
    torch.set_num_threads(spec.threads)
    data = texts.read(out)
    model = build(spec, len(data.pieces))
    with torch.no_grad():
        model.get_parameter("text.token_embedding.weight").copy_(data.embeddings)
    saved: dict[str, Any] = {"stage": "text", "epoch": 0}
    if (out / CHECKPOINT).is_file():
        saved = torch.load(out / CHECKPOINT, weights_only=True, map_location="cpu")
        model.load_state_dict(saved["model"])
    towers = Towers(model.to(worker.device), out)
    if saved["stage"] == "text":
        stage: Stage = TextStage(spec, model, towers, data)
        _Training(spec, model, stage, out, worker).run(saved, report)
        saved = {"stage": "image", "epoch": 0}
    stage = ImageStage(spec, model, towers, training_pool(spec))
    _Training(spec, model, stage, out, worker).run(saved, report)


class _Training:
    """The epochs of one stage."""

    def __init__(
        self, spec: Spec, model: nn.Module, stage: Stage, out: Path, worker: WorkerRank
    ) -> None:
        self._spec, self._model, self._stage = spec, model, stage
        self._out, self._worker = out, worker
        model.requires_grad_(False)
        for parameter in stage.parameters.values():
            parameter.requires_grad_(True)
        self._optimizers = _optimizers(stage, spec.weight_decay)

    def run(self, saved: Mapping[str, Any], report: Callable[[EpochRecord], None]) -> None:
        """Run the epochs that `saved` does not have yet."""
        if saved["epoch"]:
            for optimizer, state in zip(self._optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
        for epoch in range(saved["epoch"], self._stage.epochs):
            record = self._epoch(epoch)
            if self._worker.rank == 0:
                self._keep(record)
            report(record)

    def _epoch(self, epoch: int) -> EpochRecord:
        stage, world = self._stage, self._worker.world
        start, losses = time.monotonic(), torch.zeros((), device=self._worker.device)
        draws = Streams(self._spec.seed).torch(f"pretrain_{stage.name}_order", round_=epoch)
        order = stage.order[torch.randperm(len(stage.order), generator=draws)]
        count = max(min(stage.batch_size, len(order)) // world, 1) * world
        for position in range(stage.steps):
            rows = order[position * count : (position + 1) * count]
            losses += self._step(rows, epoch * stage.steps + position)
        if world > 1:
            dist.all_reduce(losses)
        loss = float(losses) / stage.steps / world
        seconds = time.monotonic() - start
        return EpochRecord(stage.name, epoch + 1, stage.epochs, loss, seconds, stage.steps * count)

    def _step(self, rows: Tensor, step: int) -> Tensor:
        """Take one step on a batch; return the loss of this worker's share."""
        stage, worker = self._stage, self._worker
        lr = stage.lr * _schedule(step, stage.epochs * stage.steps)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
        bfloat16 = self._spec.precision == "bfloat16"
        # On a CPU in bfloat16 the fused gradient of so few tokens takes half of the step.
        plain = sdpa_kernel(SDPBackend.MATH)
        with plain, torch.autocast(worker.device.type, torch.bfloat16, enabled=bfloat16):
            loss = stage.loss(rows, worker.share(len(rows)), step)
        loss.backward()
        _average(stage.parameters.values(), worker.world)
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.detach()

    def _keep(self, record: EpochRecord) -> None:
        """Write the checkpoint after an epoch, and the epoch's line."""
        state = {
            "stage": record.stage,
            "epoch": record.epoch,
            "model": self._model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        replace_whole(self._out / CHECKPOINT, lambda path: torch.save(state, path))
        with (self._out / EPOCHS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def _schedule(step: int, total: int) -> float:
    """Return the factor of the learning rate: linear warm-up, then a cosine to zero."""
    warm = max(1, round(_WARM_UP * total))
    return min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / total))


def _optimizers(stage: Stage, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the blocks and AdamW for all else, with steps of one size."""
    blocks = {name for name, p in stage.parameters.items() if "resblocks" in name and p.ndim == 2}
    matrices = [p for name, p in stage.parameters.items() if name in blocks]
    others = [p for name, p in stage.parameters.items() if name not in blocks]
    return [
        torch.optim.Muon(
            matrices, lr=stage.lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=stage.lr, betas=(0.9, 0.98), weight_decay=weight_decay),
    ]


def _average(parameters: Iterable[nn.Parameter], world: int) -> None:
    """Replace gradients by their mean over the workers: one flat vector, summed once."""
    if world == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = (flat / world).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
