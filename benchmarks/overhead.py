"""Overhead of the executors: seconds of a round as a ratio to a plain PyTorch loop.

    python -m benchmarks.overhead                      W1, W2, W3, W3-stacked and W4
    python -m benchmarks.overhead --only W3 --turns 20

For each workload four processes stay alive and work in turn: a plain single-process PyTorch loop,
the same loop with the allocator settings of fedray's workers (`keep_freed_memory`), fedray's serial
executor, and fedray on Ray with 2 workers of 1 thread each. The others use 2 threads; for small
models (W3, W4), whose steps the barriers of two threads slow down, they use 1. The ratio to the
first loop shows the whole gain. The ratio to the second loop excludes the gain of the allocator
settings.

All processes run FedAvg from the same weights, partition, cohorts and batch order. At the end the
global models must agree to 1e-4. A turn is a block of rounds, after a pause in which the OpenMP
threads of the previous process stop spinning. The reported ratio is the median over turns of the
ratio of seconds in one turn. Start-up is reported separately. Memory is the peak of the process
tree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Child, PeakMemory, ratio, serve, time_in_turns

PAUSE = 0.1
LOOPS = ("loop", "loop-kept")
MODES = (*LOOPS, "serial", "ray")


# --- the work ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """The size of a federation and how long to measure it.

    Attributes:
        summary: one line for the terminal.
        clients: number of clients.
        samples: training images per client, noise of CIFAR's size; 0 divides the digits.
        participation: share of the clients in a round.
        epochs: local epochs.
        batch: batch size.
        group: `model.group`.
        block: rounds per turn.
        turns: timed turns.
        eval_every: rounds between tests of all clients; 0 for none.
        threads: threads of the loops and of the serial executor.
        stacked: clients that fedray trains together; the loops train clients one by one.
        feature_dim: `model.feature_dim`.
        plugins: files that define the group.
    """

    summary: str
    clients: int
    samples: int
    participation: float
    epochs: int
    batch: int
    group: str
    block: int
    turns: int
    eval_every: int = 0
    threads: int = 2
    stacked: int = 1
    feature_dim: int = 512
    plugins: tuple[str, ...] = ()


SMALL = Workload(
    "100 clients of digits, perceptron 64-128-10, 20 %, 1 epoch, batch 16",
    100, 0, 0.2, 1, 16, "mlp", 50, 10, threads=1, feature_dim=128,
)  # fmt: skip
STACKED, TESTED = "W3, all clients of a round trained together", "W3, all clients tested each round"
WORKLOADS = {
    "W1": Workload(
        "20 clients x 250 CIFAR-size images, 5 epochs, batch 100, CNN4",
        20, 250, 1.0, 5, 100, "cnn4", 1, 6,
    ),
    "W2": Workload(
        "200 clients x 20 images, 20 % participation, 1 epoch, batch 10, CNN4",
        200, 20, 0.2, 1, 10, "cnn4", 4, 8,
    ),
    "W3": SMALL,
    "W3-stacked": replace(SMALL, summary=STACKED, stacked=20),
    "W4": replace(SMALL, summary=TESTED, block=20, eval_every=1),
}  # fmt: skip


def experiment(workload: Workload, root: Path, threads: int) -> Any:
    """Return a workload's experiment on images of noise below `root`, or on the digits."""
    from fedray.config import with_plugins
    from fedray.runtime.resolve import from_tree

    data: dict[str, object] = {"source": "digits", "test_fraction": 0.25}
    if workload.samples:
        images = make_images(workload, root)
        data = {"source": "parquet", "root": str(images), "test_fraction": 0.01}
    tree: dict[str, object] = {
        "algorithm": "fedavg",
        "rounds": 100_000,
        "participation": workload.participation,
        "local_epochs": workload.epochs,
        "batch_size": workload.batch,
        "lr": 0.01,
        "eval_every": workload.eval_every,
        "stacked": workload.stacked,
        "checkpoint_every": 0,
        "workers": 2,
        "threads": threads,
        "model": {"group": workload.group, "feature_dim": workload.feature_dim},
        "data": {**data, "clients": workload.clients, "partition": "iid"},
    }
    return from_tree(with_plugins(tree, (), workload.plugins))


def make_images(workload: Workload, root: Path) -> Path:
    """Write a workload's images, those of its test split included; return their folder."""
    tested = 3 if workload.samples > 100 else 1
    count = workload.clients * (workload.samples + tested)
    return common.write_noise(root / f"noise-{count}", count, 32)


class BareLoop:
    """FedAvg in plain PyTorch in one process; only its inputs come from fedray.

    Args:
        assembly: the parts of the experiment.

    Attributes:
        weights: the global model.
    """

    def __init__(self, assembly: Any) -> None:
        import numpy as np
        import torch

        data, models = assembly.data, assembly.models
        architecture = models.architectures[0]
        self._experiment, self._streams = assembly.experiment, assembly.streams
        self._model = models.empty(architecture)
        self._images = [torch.from_numpy(data.images.images[index]) for index in data.train]
        self._labels = [torch.from_numpy(data.images.labels[index]) for index in data.train]
        tested = np.concatenate(data.test)
        self._tested = torch.from_numpy(data.images.images[tested])
        self._tested_labels = torch.from_numpy(data.images.labels[tested])
        self._owner = torch.repeat_interleave(torch.tensor([len(i) for i in data.test]))
        initial = models.initial(architecture)
        self.weights = {name: value.clone() for name, value in initial.items()}

    def round(self, number: int) -> None:
        """Train the cohort of a round and average its models."""
        import torch

        setting, labels = self._experiment, self._labels
        count = round(setting.participation * setting.data.clients)
        cohort = list(range(count))
        if count < setting.data.clients:
            random = self._streams.numpy("participation", round_=number)
            cohort = sorted(random.choice(setting.data.clients, size=count, replace=False).tolist())
        total = sum(len(labels[client]) for client in cohort)
        mean = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        for client in cohort:
            self._train(client, number)
            for name, value in self._model.state_dict().items():
                mean[name] += value.detach().clone() * (len(labels[client]) / total)
        self.weights = mean
        if setting.eval_every:
            self._test()

    def _test(self) -> list[float]:
        """Return the global model's accuracy on each client's test images, from one pass."""
        import torch

        from fedray.models import Pixels

        self._model.load_state_dict(self.weights)
        self._model.eval()
        with torch.inference_mode():
            x = self._tested.float() / 127.5 - 1
            right = self._model(Pixels(x)).logits.argmax(1) == self._tested_labels
            accuracy: torch.Tensor = self._owner.bincount(right) / self._owner.bincount()
        return accuracy.tolist()

    def _train(self, client: int, number: int) -> None:
        import torch
        import torch.nn.functional as F

        from fedray.models import Pixels

        setting, model = self._experiment, self._model
        images, labels = self._images[client], self._labels[client]
        model.load_state_dict(self.weights)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr)
        random = self._streams.torch("batches", round_=number, client=client)
        for _ in range(setting.local_epochs):
            order = torch.randperm(len(labels), generator=random)
            for index in order.split(setting.batch_size):
                x = images[index].float() / 127.5 - 1
                optimizer.zero_grad()
                loss = F.cross_entropy(model(Pixels(x)).logits, labels[index])
                loss.backward()
                optimizer.step()


def rounds_of(
    mode: str, assembly: Any
) -> tuple[Callable[[int], object], Callable[[], Mapping[str, Any]], Callable[[], None]]:
    """Return three functions: run round `number`, return the global model, release everything.

    Args:
        mode: "loop", "loop-kept" (with the allocator settings of the workers), "serial" or "ray".
        assembly: the parts of the experiment.
    """
    if mode.startswith("loop"):
        from fedray.runtime.devices import keep_freed_memory

        if mode == "loop-kept":
            keep_freed_memory()
        loop = BareLoop(assembly)
        return loop.round, lambda: loop.weights, lambda: None
    executor, close = _executor(mode, assembly)
    federation = federation_of(assembly, executor)
    rounds = federation.rounds()
    next(rounds)  # round 0: only initialisation
    return (
        lambda _: next(rounds),
        lambda: dict(federation.snapshot.server.get("model", {})),
        close,
    )


def federation_of(assembly: Any, executor: Any) -> Any:
    """Return the federation of an experiment; its server computes on the CPU."""
    import torch

    from fedray.federation import Federation

    a, server = assembly, assembly.server(torch.device("cpu"))
    return Federation(a.algorithm, executor, a.gate, a.plan, server)


def _executor(mode: str, assembly: Any) -> tuple[Any, Callable[[], None]]:
    """Return an executor, and the function that closes its workers."""
    if mode == "serial":
        import torch

        from fedray.runtime.serial import SerialExecutor

        return SerialExecutor(assembly, torch.device("cpu")), lambda: None
    from fedray.runtime.cluster import connect
    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import RayExecutor, Worker

    connect(num_cpus=assembly.experiment.workers)
    pool = WorkerPool(Worker, assembly.experiment)
    return RayExecutor(assembly, pool), pool.close


# --- the measurement -----------------------------------------------------------------------------


def serve_rounds(name: str, mode: str, root: Path) -> None:
    """Run a round for each line "round"; save the global model for the line "end FILE"."""
    started, threads = time.time(), WORKLOADS[name].threads
    import torch

    from fedray.runtime.assembly import Assembly

    torch.set_num_threads(threads)
    setting = experiment(WORKLOADS[name], root, threads if mode == "serial" else 1)
    assembly = Assembly(setting)
    one_round, global_model, close = rounds_of(mode, assembly)
    number = 0

    def answer(line: str) -> Any:
        nonlocal number
        if line.startswith("end"):
            torch.save(global_model(), line.split()[1])
            return None
        number += 1
        begin = time.perf_counter()
        one_round(number)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "since_start": time.time() - started}

    serve(answer)
    close()


def start(name: str, mode: str, root: Path) -> Child:
    """Start the process of one mode; its images, parameters and log lie below `root`."""
    words = ["-m", "benchmarks.overhead", "--serve", name, mode, str(root)]
    log = root / f"{name}-{mode}.log"
    threads = WORKLOADS[name].threads if name in WORKLOADS else 1
    return Child(f"{name}, {mode}", words, log, common.environment(threads))


def compare(name: str, turns: int, root: Path) -> dict[str, Any]:
    """Run one workload in every mode, in turn; return the measurements by mode."""
    import torch

    workload = WORKLOADS[name]
    if workload.samples:
        make_images(workload, root)
    children = {mode: start(name, mode, root) for mode in MODES}
    first = {mode: child.ask("round") for mode, child in children.items()}

    def block(child: Child) -> float:
        return sum(child.ask("round")["seconds"] for _ in range(workload.block)) / workload.block

    blocks = {mode: partial(block, child) for mode, child in children.items()}
    time_in_turns(blocks, 1, PAUSE)  # warm-up
    seconds = time_in_turns(blocks, turns, PAUSE)
    peaks, models = {}, {}
    for mode, child in children.items():  # after the timing, because sampling costs time
        with PeakMemory(child.pid) as peak:
            child.ask("round")
            time.sleep(1.0)
        peaks[mode] = peak.bytes
        child.ask(f"end {root / f'{name}-{mode}.pt'}")
        child.close()
        models[mode] = torch.load(root / f"{name}-{mode}.pt")
    return {
        mode: {
            "seconds": statistics.median(seconds[mode]),
            "ratios": {loop: ratio(seconds[mode], seconds[loop]) for loop in LOOPS},
            "first_round_seconds": first[mode]["since_start"],
            "peak_bytes": peaks[mode],
            "difference": largest_difference(models["loop"], models[mode]),
        }
        for mode in MODES
    }


def largest_difference(loop: Any, mine: Any) -> float:
    """Return the largest absolute difference of two models' tensors; NaN if one holds NaN."""
    import torch

    gaps = [(mine[key].double() - value.double()).abs().max() for key, value in loop.items()]
    return float(torch.stack(gaps).max())


def print_rows(rows: dict[str, Any]) -> None:
    """Print the measurements of one workload."""
    for mode, row in rows.items():
        ratios = "  ".join(
            f"of {loop} {median:5.2f} [{least:.2f}, {largest:.2f}]"
            for loop, (median, least, largest) in row["ratios"].items()
        )
        print(
            f"  {mode:9s} {1e3 * row['seconds']:9.1f} ms/round  {ratios}\n"
            f"            first round after {row['first_round_seconds']:5.1f} s, "
            f"peak {row['peak_bytes'] / 1e6:6.0f} MB, parameters within {row['difference']:.1e}",
            flush=True,
        )


def main() -> None:
    """Parse the command line and measure."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    cli.add_argument("--turns", type=int, help="timed turns per workload")
    cli.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = cli.parse_args()
    if args.serve:
        serve_rounds(args.serve[0], args.serve[1], Path(args.serve[2]))
        return
    print(f"{os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            workload = WORKLOADS[name]
            print(f"\n{name}: {workload.summary}; threads: {workload.threads}", flush=True)
            rows = compare(name, args.turns or workload.turns, Path(folder))
            print_rows(rows)
            if not all(row["difference"] <= 1e-4 for row in rows.values()):
                raise SystemExit(f"{name}: the modes did not do the same work")


if __name__ == "__main__":
    main()
