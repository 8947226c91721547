"""Clients per second and utilisation of a GPU with 1 to 8 workers, with and without stacking.

    python -m benchmarks.gpu                                   all variants, at most ten minutes
    python -m benchmarks.gpu --only cnn4 --workers 2 4 --seconds 20
    python -m benchmarks.gpu --counts                          without a GPU: steps of all methods
    python -m benchmarks.gpu --counts fedavg moon

A variant is a new process that runs FedAvg's rounds on Ray; its workers share one GPU. After one
warm-up round, rounds are timed for some seconds. Utilisation is the share of time in which the GPU
runs any kernel, averaged over nvidia-smi's samples; memory is the largest sample. Variants that do
not fit into --minutes are listed at the end. If a variant fails, the others still run.

With --counts, every method runs two rounds of small batches on the pretended accelerator of
`fedray check`. It counts operators (calls that compute), copies to the device and synchronisations
(results that the CPU waits for), see `fedray/runtime/pretended_device.py`: per batch, without the
first batch of an epoch, and per client step, including its batches.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import overhead
from benchmarks.common import Child, serve

PROMPTS = {
    "algorithm": "promptfl",
    "rounds": 100_000,
    "local_epochs": 1,
    "batch_size": 16,
    "eval_every": 0,
    "checkpoint_every": 0,
    "model": {"clip": "small"},
    "data": {"source": "digits", "clients": 20, "partition": "iid", "image_size": 32},
}
WORKLOADS = {"perceptron": "W3", "cnn4": "W2", "prompts": ""}
"""Workloads by name, with their name in `benchmarks.overhead`, if any."""
WORKERS = (1, 2, 4, 8)
STACKED = (1, 20)
"""Numbers of clients that are trained as one model."""
SAMPLES = ("nvidia-smi", "--id=0", "--query-gpu=utilization.gpu,memory.used", "-lms", "250")
ROW = "| {:<10} | {:>7} | {:>7} | {:>9} | {:>6} | {:>11} |"


def experiment(name: str, workers: int, stacked: int, gpus: int, root: Path) -> Any:
    """Return a variant's experiment."""
    from fedray.runtime.resolve import from_tree

    workload = WORKLOADS[name]
    tree = overhead.experiment(workload, root, threads=1).tree() if workload else PROMPTS
    sets = {"workers": workers, "gpus": gpus, **({"stacked": stacked} if stacked > 1 else {})}
    return from_tree(tree, sets.items())


def variants(names: Sequence[str], workers: Sequence[int]) -> list[tuple[str, int, int]]:
    """Return workload, workers and stacked clients of all variants."""
    from fedray.config import Experiment

    stacked = STACKED if "stacked" in Experiment.model_fields else (1,)
    return [(name, count, clients) for name in names for clients in stacked for count in workers]


def serve_rounds(variant: Any) -> None:
    """Run rounds for each line with a number of seconds; answer with clients per second."""
    from fedray.runtime.assembly import Assembly

    assembly = Assembly(variant)
    one_round, _, close = overhead.rounds_of("ray", assembly)
    clients, number = round(variant.participation * variant.data.clients), 0

    def answer(line: str) -> float:
        nonlocal number
        first, begin = number, time.perf_counter()
        while number == first or time.perf_counter() - begin < float(line):
            number += 1
            one_round(number)
        return clients * (number - first) / (time.perf_counter() - begin)

    serve(answer)
    close()


@contextmanager
def sampled() -> Iterator[list[tuple[int, int]]]:
    """Collect utilisation in percent and memory in MiB of the first NVIDIA GPU, if there is one."""
    samples: list[tuple[int, int]] = []
    if shutil.which(SAMPLES[0]) is None:
        yield samples
        return
    words = [*SAMPLES, "--format=csv,noheader,nounits"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield samples
        finally:
            process.terminate()
            lines = process.communicate()[0].splitlines()
    for line in lines:
        busy, _, memory = line.partition(",")
        if busy.strip().isdigit() and memory.strip().isdigit():
            samples.append((int(busy), int(memory)))


def measure(variant: tuple[str, int, int], gpus: int, seconds: float, root: Path) -> list[str]:
    """Return the table cells of a variant: its measurements, or the reason of its failure."""
    name, words = "-".join(map(str, variant)), [*map(str, variant), str(gpus), str(root)]
    child = Child(name, ["-m", "benchmarks.gpu", "--serve", *words], root / f"{name}.log")
    try:
        child.ask("0")
        with sampled() as samples:
            rate = child.ask(str(seconds))
        child.close()
    except SystemExit as error:
        return [f"failed: {str(error).splitlines()[-1][:100]}", "", ""]
    if not samples:
        return [f"{rate:.1f}", "-", "-"]
    busy = sum(sample[0] for sample in samples) / len(samples)
    return [f"{rate:.1f}", f"{busy:.0f}", str(max(sample[1] for sample in samples))]


def count(methods: Sequence[str]) -> None:
    """Print the counts of a batch and a client step of each method on the pretended accelerator."""
    from fedray.core import algorithms
    from fedray.runtime import pretended_device

    pretended_device.device()  # before autograd runs
    from fedray.runtime.conformance import count_steps, small_experiment

    kinds = ("operators", "copies", "synchronisations")
    print("| method | batch: " + " | ".join(kinds) + " | step: " + " | ".join(kinds) + " |")
    print("|---" * 7 + "|")
    for method in methods or algorithms.names():
        counts = count_steps(small_experiment(method))
        cells = [counts.inside[kind] / max(1, counts.batches) for kind in kinds]
        cells += [counts.whole[kind] / max(1, counts.steps) for kind in kinds]
        print("|", " | ".join([method, *(f"{cell:.4g}" for cell in cells)]), "|", flush=True)


def main() -> None:
    """Parse the command line; measure or count."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    cli.add_argument("--workers", nargs="*", type=int, default=list(WORKERS))
    cli.add_argument("--seconds", type=float, default=6, help="timed seconds per variant")
    cli.add_argument("--minutes", type=float, default=9, help="start no variant after this time")
    cli.add_argument("--cpu", action="store_true", help="measure the CPU, to try this program")
    cli.add_argument("--counts", nargs="*", metavar="METHOD", help="count steps of these, or all")
    cli.add_argument("--serve", nargs=5, help=argparse.SUPPRESS)
    args = cli.parse_args()
    if args.serve:
        name, workers, stacked, gpus, root = args.serve
        serve_rounds(experiment(name, int(workers), int(stacked), int(gpus), Path(root)))
        return
    if args.counts is not None:
        count(args.counts)
        return
    from fedray.runtime.devices import KINDS, accelerator

    kind = "cpu" if args.cpu else accelerator()
    if kind is None:
        raise SystemExit(f"torch finds no GPU here ({', '.join(KINDS)}); --cpu tries the CPU")
    until, waiting = time.monotonic() + 60 * args.minutes, variants(args.only, args.workers)
    print(ROW.format("workload", "workers", "stacked", "clients/s", "busy %", "memory, MiB"))
    print("|---" * 6 + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(WORKLOADS.get, args.only):
            if overhead.WORKLOADS[WORKLOADS[name]].samples:
                overhead.make_images(WORKLOADS[name], Path(folder))
        while waiting and time.monotonic() < until:
            variant = waiting.pop(0)
            cells = measure(variant, int(not args.cpu), args.seconds, Path(folder))
            print(ROW.format(*variant, *cells), flush=True)
    if waiting:
        print(f"no time for {', '.join('-'.join(map(str, variant)) for variant in waiting)}")


if __name__ == "__main__":
    main()
