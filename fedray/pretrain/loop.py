"""The training loop of one worker; Ray Train runs several of them, or this process one."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.pretrain import distillation
from fedray.pretrain.export import build
from fedray.pretrain.images import training_pool
from fedray.pretrain.spec import PretrainConfig
from fedray.pretrain.stages import ImageStage, Stage, TextStage
from fedray.runtime.memory import keep_freed_memory
from fedray.streams import Streams

CHECKPOINT, EPOCHS = "checkpoint.pt", "epochs.jsonl"
_WARM_UP = 0.05


@dataclass(frozen=True)
class EpochRecord:
    """One epoch, as epochs.jsonl holds it.

    Attributes:
        stage: text or image.
        epoch: from 1.
        epochs: of the whole stage.
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
    """Which worker this is.

    Attributes:
        rank: its number.
        world: how many there are.
        device: what it computes on.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")

    def share(self, count: int) -> slice:
        """This worker's share of `count` rows; all shares are equally large."""
        each = count // self.world
        return slice(self.rank * each, (self.rank + 1) * each)


def train(
    config: PretrainConfig, out: Path, worker: WorkerRank, report: Callable[[EpochRecord], None]
) -> None:
    """Train both stages from the folder's checkpoint on, and write one after every epoch.

    Args:
        config: what to train, and how.
        out: the run's folder, shared by all workers; holds what `distillation.prepare` wrote.
        worker: which worker this is.
        report: called by every worker after every epoch.
    """
    import open_clip

    keep_freed_memory()
    torch.set_num_threads(config.threads)
    data = distillation.read(out)
    model = build(config, len(data.pieces), Streams(config.seed).entropy("pretrain_weights"))
    with torch.no_grad():
        model.token_embedding.weight.copy_(data.embeddings)
    saved: dict[str, Any] = {"stage": "text", "epoch": 0}
    if (out / CHECKPOINT).is_file():
        saved = torch.load(out / CHECKPOINT, weights_only=True, map_location="cpu")
        model.load_state_dict(saved["model"])
    model.to(worker.device)
    tokenizer = open_clip.tokenizer.HFTokenizer(str(out), context_length=config.text.context_length)
    if saved["stage"] == "text":
        stage: Stage = TextStage(config, model, tokenizer, data)
        _Learning(config, model, stage, out, worker).run(saved, report)
        saved = {"stage": "image", "epoch": 0}
    stage = ImageStage(config, model, tokenizer, training_pool(config))
    _Learning(config, model, stage, out, worker).run(saved, report)


class _Learning:
    """The epochs of one stage."""

    def __init__(
        self, config: PretrainConfig, model: Any, stage: Stage, out: Path, worker: WorkerRank
    ) -> None:
        self._config, self._model, self._stage = config, model, stage
        self._out, self._worker = out, worker
        model.requires_grad_(False)
        for parameter in stage.parameters.values():
            parameter.requires_grad_(True)
        model.train()
        self._optimizers = _optimizers(stage, config.weight_decay)

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
        stage, worker = self._stage, self._worker
        began, losses = time.monotonic(), torch.zeros((), device=worker.device)
        draws = Streams(self._config.seed).torch(f"pretrain_{stage.name}_order", round_=epoch)
        order = stage.order[torch.randperm(len(stage.order), generator=draws)]
        count = _whole(min(stage.batch_size, len(order)), worker.world)
        for position in range(stage.steps):
            rows = order[position * count : (position + 1) * count]
            losses += self._step(rows, epoch * stage.steps + position)
        return EpochRecord(
            stage=stage.name,
            epoch=epoch + 1,
            epochs=stage.epochs,
            loss=_mean(losses / stage.steps, worker.world),
            seconds=time.monotonic() - began,
            rows=stage.steps * count,
        )

    def _step(self, rows: Tensor, step: int) -> Tensor:
        """One step on a batch, `step` counted over all epochs; the loss of this worker's share."""
        stage, worker = self._stage, self._worker
        lr = stage.lr * _schedule(step, stage.epochs * stage.steps)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
        bfloat16 = self._config.precision == "bfloat16"
        # On a CPU in bfloat16 the fused gradient of so few tokens takes half of the step.
        plain = sdpa_kernel(SDPBackend.MATH)
        with plain, torch.autocast(worker.device.type, torch.bfloat16, enabled=bfloat16):
            loss = stage.loss(rows, worker.share(len(rows)), step)
        loss.backward()  # type: ignore[no-untyped-call]
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
        _save(state, self._out / CHECKPOINT)
        with (self._out / EPOCHS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def _whole(count: int, world: int) -> int:
    """The largest multiple of `world` that is at most `count`."""
    return max(count // world, 1) * world


def _schedule(step: int, total: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm = max(1, round(_WARM_UP * total))
    return min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / total))


def _optimizers(stage: Stage, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for all else; both with steps of Adam's size."""
    blocks = [p for name, p in stage.parameters.items() if "resblocks" in name and p.ndim == 2]
    matrices = set(map(id, blocks))
    others = [p for p in stage.parameters.values() if id(p) not in matrices]
    return [
        torch.optim.Muon(
            blocks, lr=stage.lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
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
    flat /= world
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def _mean(value: Tensor, world: int) -> float:
    """The mean of a number over the workers."""
    if world > 1:
        dist.all_reduce(value)
    return float(value) / world


def _save(state: dict[str, Any], path: Path) -> None:
    """Replace a checkpoint in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)
