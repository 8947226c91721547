"""The training loop of one worker; Ray Train runs several of them, or this process one."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedray.pretrain import lessons
from fedray.pretrain.export import build
from fedray.pretrain.images import training_pool
from fedray.pretrain.spec import PretrainConfig
from fedray.pretrain.stages import ImageStage, Stage, TextStage
from fedray.runtime.memory import keep_freed_memory
from fedray.streams import Streams

CHECKPOINT, EPOCHS = "checkpoint.pt", "epochs.jsonl"
_WARM_UP = 0.05

Record = dict[str, Any]


@dataclass(frozen=True)
class Place:
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
    config: PretrainConfig, out: Path, place: Place, report: Callable[[Record], None]
) -> None:
    """Learn both stages from the folder's checkpoint on, and write one after every epoch.

    Args:
        config: what to learn.
        out: the run's folder, shared by all workers; holds what `lessons.prepare` wrote.
        place: which worker this is.
        report: called by every worker after every epoch, with its record.
    """
    import open_clip

    keep_freed_memory()
    torch.set_num_threads(config.threads)
    taught = lessons.read(out)
    model = build(config, len(taught.pieces), Streams(config.seed).entropy("pretrain_weights"))
    with torch.no_grad():
        model.token_embedding.weight.copy_(taught.embeddings)
    saved: Record = {"stage": "text", "epoch": 0}
    if (out / CHECKPOINT).is_file():
        saved = torch.load(out / CHECKPOINT, weights_only=True, map_location="cpu")
        model.load_state_dict(saved["model"])
    model.to(place.device)
    tokenizer = open_clip.tokenizer.HFTokenizer(str(out), context_length=config.text.context_length)
    if saved["stage"] == "text":
        stage: Stage = TextStage(config, model, tokenizer, taught)
        _learn(config, model, stage, saved, out, place, report)
        saved = {"stage": "image", "epoch": 0}
    stage = ImageStage(config, model, tokenizer, training_pool(config))
    _learn(config, model, stage, saved, out, place, report)


def _learn(
    config: PretrainConfig,
    model: Any,
    stage: Stage,
    saved: Record,
    out: Path,
    place: Place,
    report: Callable[[Record], None],
) -> None:
    """The epochs of one stage that `saved` does not have yet."""
    model.requires_grad_(False)
    for parameter in stage.parameters.values():
        parameter.requires_grad_(True)
    model.train()
    optimizers = _optimizers(stage, config.weight_decay)
    if saved["epoch"]:
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
    total = stage.epochs * stage.steps
    for epoch in range(saved["epoch"], stage.epochs):
        began, losses = time.monotonic(), torch.zeros((), device=place.device)
        draws = Streams(config.seed).torch(f"pretrain_{stage.name}_order", round_=epoch)
        order = stage.order[torch.randperm(len(stage.order), generator=draws)]
        count = _whole(min(stage.batch_size, len(order)), place.world)
        for position in range(stage.steps):
            step = epoch * stage.steps + position
            rows = order[position * count : (position + 1) * count]
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = stage.lr * _schedule(step, total)
                optimizer.zero_grad()
            with torch.autocast(
                place.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"
            ):
                loss = stage.loss(rows, place.share(count), step)
            loss.backward()  # type: ignore[no-untyped-call]
            _average(stage.parameters.values(), place.world)
            for optimizer in optimizers:
                optimizer.step()
            losses += loss.detach()
        mean_loss = _mean(losses / stage.steps, place.world)
        record = {
            "stage": stage.name,
            "epoch": epoch + 1,
            "epochs": stage.epochs,
            "loss": mean_loss,
            "seconds": time.monotonic() - began,
            "rows": stage.steps * count,
        }
        if place.rank == 0:
            state = {
                "stage": stage.name,
                "epoch": epoch + 1,
                "model": model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            }
            _save(state, out / CHECKPOINT)
            with (out / EPOCHS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        report(record)


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


def _save(state: Record, path: Path) -> None:
    """Replace a checkpoint in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)
