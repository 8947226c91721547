"""Time and memory of one local step on prompts, against a straightforward implementation.

    python benchmarks/prompts.py
    python benchmarks/prompts.py --classes 50 --batch 32 --device cuda

Both sides train the same prompts around the same ViT-B/16 with random weights, on the same images,
in turns within one process; the ratio of their medians is what counts. The straightforward side
is what one would write first: texts of 77 tokens, groups in a Python loop, the image tower run in
every step. It must give the same loss and the same prompts after a step, to 1e-4. Memory is the
peak of a process of its own for each side (on CUDA: the allocator's peak).
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.algorithms.prompts.fedmgp import diversity, group_cross_entropy
from fedray.config import Component
from fedray.models import ImageFeatures, Pixels
from fedray.models.clip import ClipChoice, FrozenClip
from fedray.models.prompted import PHOTO, ContextClip, GroupedClip, PromptedClip
from fedray.models.prompted.texts import placeholders

CONTEXT = 77
LR = 1e-3
Step = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """What is compared: a loss of fedray's and a straightforward one, over the same prompts."""

    what: str
    prompts: Callable[[FrozenClip, list[str]], PromptedClip]
    ours: Callable[[PromptedClip, Any], Tensor]
    plain: Callable[[Plain, PromptedClip, Any], Tensor]


class Plain:
    """CLIP used as it comes: full length, one group after the other, nothing kept.

    Args:
        clip: where the weights are.
        names: of the classes.
    """

    def __init__(self, clip: FrozenClip, names: list[str]) -> None:
        self.tower = clip._model.text
        self.visual = clip._model.visual
        self.vision = clip.vision
        self.scale = clip.scale
        self.tokenizer = clip.text._tokenizer
        self.names = names

    def text(self, context: Tensor, template: str) -> Tensor:
        """Unit text features [K, d] under one context [l, w]."""
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
        """Unit image features [B, d], with visual prompts [l, w] or none."""
        visual = self.visual
        x = self.vision.embed(images)
        if prompt is not None:
            x = torch.cat([x, visual.ln_pre(prompt).expand(len(x), -1, -1)], dim=1)
        x = visual.ln_post(visual.transformer(x)[:, 0]) @ visual.proj
        return F.normalize(x, dim=-1)


@dataclass(frozen=True)
class Data:
    """One batch: images, what the frozen tower makes of them, labels."""

    images: Tensor
    features: Tensor
    labels: Tensor


def promptfl(model: PromptedClip, data: Data) -> Tensor:
    """Cross-entropy of PromptFL's step, from kept image features."""
    return F.cross_entropy(model(ImageFeatures(data.features)).logits, data.labels)


def plain_promptfl(plain: Plain, model: ContextClip, data: Data) -> Tensor:
    """The same, with the image tower in the step."""
    with torch.no_grad():
        image = plain.image(data.images)
    text = plain.text(model.context, placeholders(model.length))
    return F.cross_entropy(plain.scale * image @ text.T, data.labels)


def fedmgp_text(model: GroupedClip, data: Data) -> Tensor:
    """FedMGP's loss with text prompts alone, from kept image features."""
    groups = model(ImageFeatures(data.features)).groups
    return group_cross_entropy(groups.logits, data.labels) + diversity(
        groups.text, "l1", "repel", "mean"
    )


def plain_fedmgp_text(plain: Plain, model: GroupedClip, data: Data) -> Tensor:
    """The same, group by group; image features are given, since the text side is asked about."""
    texts = torch.stack([plain.text(context, PHOTO) for context in model.text])
    logits = plain.scale * F.normalize(data.features, dim=-1) @ texts.transpose(1, 2)
    return group_cross_entropy(logits, data.labels) + diversity(texts, "l1", "repel", "mean")


def fedmgp(model: GroupedClip, data: Data) -> Tensor:
    """FedMGP's whole step."""
    groups = model(Pixels(data.images)).groups
    modalities = (groups.text, groups.image)
    diversities = [diversity(features, "l1", "repel", "mean") for features in modalities]
    return group_cross_entropy(groups.logits, data.labels) + torch.stack(diversities).mean()


def plain_fedmgp(plain: Plain, model: GroupedClip, data: Data) -> Tensor:
    """The same, group by group."""
    texts = torch.stack([plain.text(prompts, PHOTO) for prompts in model.text])
    images = torch.stack([plain.image(data.images, prompts) for prompts in model.visual])
    logits = plain.scale * images @ texts.transpose(1, 2)
    diversities = [diversity(prompts, "l1", "repel", "mean") for prompts in (texts, images)]
    return group_cross_entropy(logits, data.labels) + torch.stack(diversities).mean()


def _groups(visual_length: int) -> Callable[[FrozenClip, list[str]], PromptedClip]:
    return lambda clip, names: GroupedClip(
        clip, names, groups=5, text_length=2, visual_length=visual_length
    )


CASES = {
    "promptfl": Case(
        "PromptFL, whole step",
        lambda clip, names: ContextClip(clip, names, 16),
        promptfl, plain_promptfl,
    ),
    "fedmgp-text": Case(
        "FedMGP, text side", _groups(visual_length=0), fedmgp_text, plain_fedmgp_text
    ),
    "fedmgp": Case("FedMGP, whole step", _groups(visual_length=2), fedmgp, plain_fedmgp),
}  # fmt: skip


def batch(clip: FrozenClip, size: int, classes: int, device: torch.device) -> Data:
    """Random images, the same for both sides."""
    random = torch.Generator().manual_seed(0)
    side = clip.vision.image_size
    images = torch.rand(size, 3, side, side, generator=random).mul(2).sub(1).to(device)
    with torch.no_grad():
        features = clip.vision.encode(clip.vision.embed(images))[0]
    labels = torch.randint(0, classes, (size,), generator=random).to(device)
    return Data(images, features, labels)


def step(model: nn.Module, loss: Callable[[], Tensor]) -> float:
    """One step of SGD; returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), LR)
    optimizer.zero_grad()
    value = loss()
    value.backward()
    optimizer.step()
    return float(value.detach())


def prepared(case: Case, args: argparse.Namespace) -> tuple[PromptedClip, Step, Step]:
    """The model, and a step of either side on it."""
    device = torch.device(args.device)
    chosen = Component(name="openclip", model=args.model, pretrained="random")
    clip = FrozenClip(ClipChoice.of(chosen).source()).to(device)
    names = [f"thing number {i}" for i in range(args.classes)]
    model = case.prompts(clip, names).to(device)
    model.initialise(torch.Generator(device).manual_seed(1))
    data, plain = batch(clip, args.batch, args.classes, device), Plain(clip, names)
    return (
        model,
        lambda: step(model, lambda: case.ours(model, data)),
        lambda: step(model, lambda: case.plain(plain, model, data)),
    )


def agreement(model: PromptedClip, ours: Step, plain: Step) -> float:
    """The largest difference of loss and of prompts after a step from the same start."""
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    found = []
    for one in (ours, plain):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(start[name])
        loss = one()
        found.append((loss, [parameter.detach().clone() for parameter in model.parameters()]))
    (a, after_a), (b, after_b) = found
    differences = [float((x - y).abs().max()) for x, y in zip(after_a, after_b, strict=True)]
    return max(abs(a - b), *differences)


def timed(one: Step, device: str) -> float:
    """Seconds of one step."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    one()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak(name: str, side: int, args: argparse.Namespace, queue: Any) -> None:
    """Put the peak memory of one side's steps above what stands there before, MiB."""
    torch.set_num_threads(args.threads)
    steps = prepared(CASES[name], args)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps[side]()
        queue.put((torch.cuda.max_memory_allocated() - before) / 2**20)
        return
    process, seen, done = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            seen.append(process.memory_info().rss)

    before = process.memory_info().rss
    watcher = threading.Thread(target=watch)
    watcher.start()
    steps[side]()
    done.set()
    watcher.join()
    queue.put(max(0, max(seen) - before) / 2**20)


def memory(name: str, side: int, args: argparse.Namespace) -> float:
    """`peak` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=peak, args=(name, side, args, queue))
    process.start()
    found: float = queue.get()
    process.join()
    return found


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
    args = cli.parse_args()
    unknown = sorted(set(args.cases) - set(CASES))
    if unknown:
        cli.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    torch.set_num_threads(args.threads)
    print(f"{args.model}, {args.classes} classes, batch {args.batch}, {args.device}\n")
    print("| step | fedray | straightforward | times faster | MiB | MiB | difference |")
    print("|---|---|---|---|---|---|---|")
    for name in args.cases or CASES:
        model, ours, plain = prepared(CASES[name], args)
        difference = agreement(model, ours, plain)
        if difference > 1e-4:
            raise SystemExit(f"{name}: the two sides differ by {difference:.2g}, more than 1e-4")
        pairs = [(timed(ours, args.device), timed(plain, args.device)) for _ in range(args.steps)]
        fast, slow = (statistics.median(times) for times in zip(*pairs, strict=True))
        del model, ours, plain
        used = [memory(name, side, args) for side in (1, 2)]
        print(
            f"| {CASES[name].what} | {fast:.3f} s | {slow:.3f} s | {slow / fast:.1f} | "
            f"{used[0]:.0f} | {used[1]:.0f} | {difference:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
