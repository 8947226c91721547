"""Speed of a GPU with 1 to 8 workers, with and without stacking.

    python -m benchmarks.gpu                                   all variants, at most nine minutes
    python -m benchmarks.gpu --only cnn4 --workers 2 4 --seconds 20

One process per number of workers runs the rounds of all workloads on Ray; its workers share one
GPU. After one warm-up round, rounds are timed for some seconds. A step is one update of a client's
optimiser. TFLOP/s are those of the operators that PyTorch counts in a client's step, forward and
backward, without stacking; beside them stands the rate of a large matrix product on this device.
Utilisation is the share of time in which the GPU runs any kernel, averaged over nvidia-smi's
samples; memory is the largest sample, of all processes together. Variants that do not fit into
--minutes are listed at the end. If a variant fails, the others still run.
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
from typing import Any, NamedTuple

from benchmarks import overhead
from benchmarks.common import Child, serve
from benchmarks.overhead import Workload

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
ANCHOR = Workload(
    "1,000 clients x 50 CIFAR-size images, 5 %, 1 epoch, batch 10, pfl-research's CNN",
    1000, 50, 0.05, 1, 10, "anchor_cnn", 1, 1, feature_dim=128,
    plugins=(str(Path(__file__).with_name("anchor_cnn.py")),),
)  # fmt: skip
WORKLOADS: dict[str, Workload | None] = {
    "perceptron": overhead.WORKLOADS["W3"],
    "cnn4": overhead.WORKLOADS["W2"],
    "resnet18": Workload(
        "50 clients x 100 CIFAR-size images, 20 %, 1 epoch, batch 50, ResNet-18",
        50, 100, 0.2, 1, 50, "resnet18", 1, 1,
    ),
    "anchor": ANCHOR,
    "prompts": None,
}  # fmt: skip
"""Workloads by name; None is PromptFL on the digits."""
WORKERS = (1, 2, 4, 8)
STACKED = (1, 20)
"""Numbers of clients that are trained as one model."""
UNSTACKED = ("resnet18", "anchor")
"""Workloads that are not stacked: one client fills the device, or draws dropout."""
SAMPLES = ("nvidia-smi", "--id=0", "--query-gpu=utilization.gpu,memory.used", "-lms", "250")
HEADS = ("workload", "stacked", "workers", "clients/s", "steps/s", "TFLOP/s", "busy %", "MiB")
ROW = "| {:<10} | {:>7} | {:>7} | {:>9} | {:>8} | {:>7} | {:>6} | {:>6} |"


class Variant(NamedTuple):
    """A row of the table: a workload, stacked clients, and the workers that share the GPU."""

    workload: str
    stacked: int
    workers: int


def experiment(variant: Variant, gpus: int, root: Path) -> Any:
    """Return a variant's experiment; its images of noise lie below `root`."""
    from fedray.runtime.resolve import from_tree

    workload = WORKLOADS[variant.workload]
    tree = PROMPTS if workload is None else overhead.experiment(workload, root, threads=1).tree()
    sets = {"workers": variant.workers, "gpus": gpus, "stacked": variant.stacked}
    return from_tree(tree, sets.items())


def variants(names: Sequence[str], workers: Sequence[int]) -> list[Variant]:
    """Return all variants, ordered by their number of workers."""
    return [
        Variant(name, stacked, count)
        for count in workers
        for name in names
        for stacked in STACKED
        if stacked == 1 or name not in UNSTACKED
    ]


def work_of_a_client(name: str, root: Path) -> tuple[float, float]:
    """Return the optimiser steps and floating-point operations of a client's step.

    They are counted on the CPU in the second round, when prompts find the images' features kept.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from fedray.runtime.assembly import Assembly
    from fedray.runtime.serial import SerialExecutor

    setting = experiment(Variant(name, 1, 1), 0, root)
    assembly = Assembly(setting)
    executor = SerialExecutor(assembly, torch.device("cpu"))
    rounds = overhead.federation_of(assembly, executor).rounds()
    next(rounds), next(rounds)
    with FlopCounterMode(display=False) as counter:
        next(rounds)
    images = sum(map(len, assembly.data.train)) / setting.data.clients
    steps = setting.local_epochs * -(-images // setting.batch_size)
    return steps, counter.get_total_flops() / cohort(setting)


def cohort(setting: Any) -> int:
    """Return the number of clients that take part in a round."""
    return round(setting.participation * setting.data.clients)


def serve_rounds(workers: int, gpus: int, root: Path) -> None:
    """For each line "workload stacked seconds" run rounds; answer with clients per second."""
    from fedray.runtime.assembly import Assembly
    from fedray.runtime.cluster import connect
    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import RayExecutor, Worker

    connect(num_cpus=workers)
    pool: WorkerPool | None = None

    def answer(line: str) -> float:
        nonlocal pool
        name, stacked, seconds = line.split()
        setting = experiment(Variant(name, int(stacked), workers), gpus, root)
        pool = WorkerPool(Worker, setting) if pool is None else pool
        assembly = Assembly(setting)
        executor = RayExecutor(assembly, pool)
        rounds = overhead.federation_of(assembly, executor).rounds()
        next(rounds), next(rounds)  # initialisation, and a round to warm up
        count, begin = 0, time.perf_counter()
        while not count or time.perf_counter() - begin < float(seconds):
            next(rounds)
            count += 1
        taken = time.perf_counter() - begin
        executor.close()
        return cohort(setting) * count / taken

    serve(answer)
    if pool is not None:
        pool.close()


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


class Processes:
    """The process that runs the variants of one number of workers; a new one after a failure.

    Args:
        gpus: the GPUs that its workers share.
        seconds: timed seconds per variant.
        root: folder of images and logs.
    """

    def __init__(self, gpus: int, seconds: float, root: Path) -> None:
        self._gpus, self._seconds, self._root = gpus, seconds, root
        self._workers, self._child = 0, None

    def measure(self, variant: Variant, work: tuple[float, float]) -> list[str]:
        """Return the table cells of a variant: its measurements, or the reason of its failure."""
        try:
            if self._child is None or self._workers != variant.workers:
                self.close()
                self._start(variant.workers)
            with sampled() as samples:
                rate = self._child.ask(f"{variant.workload} {variant.stacked} {self._seconds}")
        except SystemExit as error:
            self._child = None
            return [f"failed: {str(error).splitlines()[-1][:100]}", "", "", "", ""]
        steps, operations = work
        cells = [f"{rate:.1f}", f"{rate * steps:.0f}", f"{rate * operations / 1e12:.3g}"]
        if not samples:
            return [*cells, "-", "-"]
        busy = sum(sample[0] for sample in samples) / len(samples)
        return [*cells, f"{busy:.0f}", str(max(sample[1] for sample in samples))]

    def close(self) -> None:
        """End the process, if there is one."""
        if self._child is not None:
            self._child.close()
        self._child = None

    def _start(self, workers: int) -> None:
        words = ["-m", "benchmarks.gpu", "--serve", *map(str, (workers, self._gpus, self._root))]
        self._workers = workers
        self._child = Child(f"{workers} workers", words, self._root / f"{workers}-workers.log")


def matrix_rate(device: str, side: int = 8192) -> dict[str, float]:
    """Return the TFLOP/s of a product of square matrices in float32, with and without TF32."""
    import torch

    module = torch.get_device_module(device)
    left, right = (torch.randn(side, side, device=device) for _ in range(2))
    rates = {}
    for name, is_allowed in (("float32", False), ("TF32", True)):
        torch.backends.cuda.matmul.allow_tf32 = is_allowed
        left @ right
        module.synchronize()
        begin = time.perf_counter()
        for _ in range(5):
            left @ right
        module.synchronize()
        rates[name] = 10 * side**3 / (time.perf_counter() - begin) / 1e12
    return rates


def main() -> None:
    """Parse the command line and measure."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    cli.add_argument("--workers", nargs="*", type=int, default=list(WORKERS))
    cli.add_argument("--seconds", type=float, default=4, help="timed seconds per variant")
    cli.add_argument("--minutes", type=float, default=9, help="start no variant after this time")
    cli.add_argument("--cpu", action="store_true", help="measure the CPU, to try this program")
    cli.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = cli.parse_args()
    if args.serve:
        workers, gpus, root = args.serve
        serve_rounds(int(workers), int(gpus), Path(root))
        return
    from fedray.runtime.devices import accelerator

    kind = "cpu" if args.cpu else accelerator()
    if kind is None:
        raise SystemExit("torch finds no GPU here; --cpu tries the CPU")
    if not args.cpu:
        rates = matrix_rate(kind)
        print("matrix product: " + ", ".join(f"{r:.1f} TFLOP/s {n}" for n, r in rates.items()))
    until, waiting = time.monotonic() + 60 * args.minutes, variants(args.only, args.workers)
    print(ROW.format(*HEADS))
    print("|---" * len(HEADS) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = {name: work_of_a_client(name, Path(folder)) for name in args.only}
        processes = Processes(int(not args.cpu), args.seconds, Path(folder))
        while waiting and time.monotonic() < until:
            variant = waiting.pop(0)
            cells = processes.measure(variant, work[variant.workload])
            print(ROW.format(*variant, *cells), flush=True)
        processes.close()
    if waiting:
        print(f"no time for {', '.join('-'.join(map(str, variant)) for variant in waiting)}")


if __name__ == "__main__":
    main()
