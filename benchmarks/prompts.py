"""Time and memory of one local step on prompts, against a straightforward implementation.

    python -m benchmarks.prompts
    python -m benchmarks.prompts --classes 50 --batch 32 --device cuda

Both sides train the same prompts around the same ViT-B/16 with random weights, on the same images,
in turns within one process. The straightforward side is a naive implementation: texts of 77 tokens,
groups in a Python loop, the image tower in every step. Its loss and its prompts after a step must
agree to 1e-4. Memory is the peak above the memory before the step, in a separate process for each
side (on CUDA: the allocator's peak).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import Child, PeakMemory, serve, time_in_turns
from fedray.algorithms.prompts.fedmgp import GroupedClip, diversity, group_cross_entropy
from fedray.config import component
from fedray.models import ImageFeatures, Pixels
from fedray.models.clip import FrozenClip
from fedray.models.prompted import PHOTO, ContextClip, PromptedClip
from fedray.models.prompted.texts import placeholders

CONTEXT = 77
LR = 1e-3
Step = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """Fedray's loss and a straightforward one over the same prompts."""

    summary: str
    prompts: Callable[[FrozenClip, list[str]], PromptedClip]
    ours: Callable[[PromptedClip, Any], Tensor]
    plain: Callable[[Plain, PromptedClip, Any], Tensor]


class Plain:
    """A CLIP without optimisations: full text length, one group at a time, no cached features.

    Args:
        clip: holds the weights.
        names: class names.
    """

    def __init__(self, clip: FrozenClip, names: list[str]) -> None:
        self.tower = clip._model.text
        self.visual = clip._model.visual
        self.vision = clip.vision
        self.scale = clip.scale
        self.tokenizer = clip.text._tokenizer
        self.names = names

    def text(self, context: Tensor, template: str) -> Tensor:
        """Return unit text features [K, d] for one context [l, w]."""
        tower = self.tower
        texts = [template.format(name) for name in self.names]
        tokens = self.tokenizer(texts, context_length=CONTEXT).to(context.device)
        x = tower.token_embedding(tokens)
        repeated = context.expand(len(x), -1, -1)
        x = torch.cat([x[:, :1], repeated, x[:, 1 + context.shape[0] :]], dim=1)
        x = tower.transformer(x + tower.positional_embedding, attn_mask=tower.attn_mask)
        x = tower.ln_final(x)[torch.arange(len(x)), tokens.argmax(-1)] @ tower.text_projection
        return F.normalize(x, dim=-1)

    def image(self, images: Tensor, prompt: Tensor | None = None) -> Tensor:
        """Return unit image features [B, d], with visual prompts [l, w] or none."""
        visual = self.visual
        x = self.vision.embed(images)
        if prompt is not None:
            x = torch.cat([x, visual.ln_pre(prompt).expand(len(x), -1, -1)], dim=1)
        x = visual.ln_post(visual.transformer(x)[:, 0]) @ visual.proj
        return F.normalize(x, dim=-1)


@dataclass(frozen=True)
class Data:
    """One batch: images, their features from the frozen tower, labels."""

    images: Tensor
    features: Tensor
    labels: Tensor


def promptfl(model: PromptedClip, data: Data) -> Tensor:
    """Return the cross-entropy of PromptFL's step, from cached image features."""
    return F.cross_entropy(model(ImageFeatures(data.features)).logits, data.labels)


def plain_promptfl(plain: Plain, model: ContextClip, data: Data) -> Tensor:
    """Return the loss of `promptfl`, with the image tower in the step."""
    with torch.no_grad():
        image = plain.image(data.images)
    text = plain.text(model.context, placeholders(model.length))
    return F.cross_entropy(plain.scale * image @ text.T, data.labels)


def fedmgp_text(model: GroupedClip, data: Data) -> Tensor:
    """Return FedMGP's loss with text prompts alone, from cached image features."""
    groups = model(ImageFeatures(data.features)).groups
    return group_cross_entropy(groups.logits, data.labels) + diversity(
        groups.text, "l1", "repel", "mean"
    )


def plain_fedmgp_text(plain: Plain, model: GroupedClip, data: Data) -> Tensor:
    """Return the loss of `fedmgp_text`, group by group; image features are cached here too."""
    texts = torch.stack([plain.text(context, PHOTO) for context in model.text])
    logits = plain.scale * F.normalize(data.features, dim=-1) @ texts.transpose(1, 2)
    return group_cross_entropy(logits, data.labels) + diversity(texts, "l1", "repel", "mean")


def fedmgp(model: GroupedClip, data: Data) -> Tensor:
    """Return the loss of FedMGP's whole step."""
    groups = model(Pixels(data.images)).groups
    modalities = (groups.text, groups.image)
    diversities = [diversity(features, "l1", "repel", "mean") for features in modalities]
    return group_cross_entropy(groups.logits, data.labels) + torch.stack(diversities).mean()


def plain_fedmgp(plain: Plain, model: GroupedClip, data: Data) -> Tensor:
    """Return the loss of `fedmgp`, group by group."""
    texts = torch.stack([plain.text(prompts, PHOTO) for prompts in model.text])
    images = torch.stack([plain.image(data.images, prompts) for prompts in model.visual])
    logits = plain.scale * images @ texts.transpose(1, 2)
    diversities = [diversity(prompts, "l1", "repel", "mean") for prompts in (texts, images)]
    return group_cross_entropy(logits, data.labels) + torch.stack(diversities).mean()


CONTEXT_CLIP = partial(ContextClip, length=16)
TEXT_GROUPS = partial(GroupedClip, groups=5, text_length=2, visual_length=0)
GROUPS = partial(GroupedClip, groups=5, text_length=2, visual_length=2)
CASES = {
    "promptfl": Case("PromptFL, whole step", CONTEXT_CLIP, promptfl, plain_promptfl),
    "fedmgp-text": Case("FedMGP, text side", TEXT_GROUPS, fedmgp_text, plain_fedmgp_text),
    "fedmgp": Case("FedMGP, whole step", GROUPS, fedmgp, plain_fedmgp),
}


def batch(clip: FrozenClip, size: int, classes: int, device: torch.device) -> Data:
    """Return a batch of random images, the same for both sides."""
    random = torch.Generator().manual_seed(0)
    side = clip.vision.image_size
    images = torch.rand(size, 3, side, side, generator=random).mul(2).sub(1).to(device)
    with torch.no_grad():
        features = clip.vision.encode(clip.vision.embed(images))[0]
    labels = torch.randint(0, classes, (size,), generator=random).to(device)
    return Data(images, features, labels)


def step(model: nn.Module, loss: Callable[[], Tensor]) -> float:
    """Take one step of SGD; return the loss."""
    optimizer = torch.optim.SGD(model.parameters(), LR)
    optimizer.zero_grad()
    value = loss()
    value.backward()
    optimizer.step()
    return float(value.detach())


def prepare(case: Case, args: argparse.Namespace) -> tuple[PromptedClip, Step, Step]:
    """Return the model, and a step of each side on it."""
    device = torch.device(args.device)
    choice = component("CLIP", "openclip", model=args.model, pretrained="random")
    clip = FrozenClip(choice.build().source()).to(device)
    names = [f"thing number {i}" for i in range(args.classes)]
    model = case.prompts(clip, names).to(device)
    model.initialise(torch.Generator(device).manual_seed(1))
    data, plain = batch(clip, args.batch, args.classes, device), Plain(clip, names)
    return (
        model,
        lambda: step(model, lambda: case.ours(model, data)),
        lambda: step(model, lambda: case.plain(plain, model, data)),
    )


def disagreement(model: PromptedClip, ours: Step, plain: Step) -> float:
    """Return the largest difference of loss and prompts after a step from the same start."""
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    results = []
    for side in (ours, plain):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(start[name])
        loss = side()
        results.append((loss, [parameter.detach().clone() for parameter in model.parameters()]))
    (a, after_a), (b, after_b) = results
    differences = [float((x - y).abs().max()) for x, y in zip(after_a, after_b, strict=True)]
    return max(abs(a - b), *differences)


def seconds_of(side: Step, device: str) -> float:
    """Return the seconds of one step."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    side()
    wait()
    return time.perf_counter() - start


def peak(side: Step, device: str) -> float:
    """Return the peak memory of a step above the memory before it, in MiB."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        side()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    process = psutil.Process()
    before = process.memory_info().rss
    with PeakMemory(process.pid, lambda _: process.memory_info().rss, seconds=0.005) as sampled:
        side()
    return max(0, sampled.bytes - before) / 2**20


def peaks(name: str) -> list[float]:
    """Return `peak` of both sides, each in a new process with this command's arguments."""
    values = []
    with tempfile.TemporaryDirectory() as folder:
        for side in ("1", "2"):
            words = ["-m", "benchmarks.prompts", *sys.argv[1:], "--serve", name, side]
            child = Child(f"{name}, side {side}", words, Path(folder) / side)
            values.append(child.ask("peak"))
            child.close()
    return values


def main() -> None:
    """Measure the cases and print one line for each."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    cli.add_argument("--model", default="ViT-B-16-quickgelu", help="an architecture of open_clip")
    cli.add_argument("--classes", type=int, default=10)
    cli.add_argument("--batch", type=int, default=8)
    cli.add_argument("--steps", type=int, default=5)
    cli.add_argument("--threads", type=int, default=torch.get_num_threads())
    cli.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    cli.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = cli.parse_args()
    unknown = sorted(set(args.cases) - set(CASES))
    if unknown:
        cli.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    torch.set_num_threads(args.threads)
    if args.serve:
        side = prepare(CASES[args.serve[0]], args)[int(args.serve[1])]
        serve(lambda _: peak(side, args.device))
        return
    print(f"{args.model}, {args.classes} classes, batch {args.batch}, {args.device}\n")
    print("| step | fedray | straightforward | times faster | MiB | MiB | difference |")
    print("|---|---|---|---|---|---|---|")
    for name in args.cases or CASES:
        model, ours, plain = prepare(CASES[name], args)
        difference = disagreement(model, ours, plain)
        if difference > 1e-4:
            raise SystemExit(f"{name}: the two sides differ by {difference:.2g}, more than 1e-4")
        sides = {"ours": ours, "plain": plain}
        steps = {side: partial(seconds_of, sides[side], args.device) for side in sides}
        fast, slow = map(statistics.median, time_in_turns(steps, args.steps).values())
        del model, ours, plain, sides, steps
        used = peaks(name)
        print(
            f"| {CASES[name].summary} | {fast:.3f} s | {slow:.3f} s | {slow / fast:.1f} | "
            f"{used[0]:.0f} | {used[1]:.0f} | {difference:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
