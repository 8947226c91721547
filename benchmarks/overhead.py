"""Overhead of the executors against the bare loop, as ratios taken in one run.

    python benchmarks/overhead.py                      W1, W2 and W3
    python benchmarks/overhead.py --only W3 --turns 20

For each workload three processes stay alive and work in turn: a plain single-process PyTorch
loop, fedray's serial executor, and fedray on Ray with 2 workers. All use 2 threads: the loop and
the serial executor 2 threads in one process, Ray 2 workers of 1 thread. The work is the same:
FedAvg from the same weights, partition, cohorts and batch order; at the end the global models must
agree to 1e-4. A turn is a block of rounds without a pause, after a moment in which the threads of
the process before go to sleep (OpenMP's spin on for milliseconds, as long as a round of W3).
Reported is the median over turns of the ratio of a round's seconds to the loop's in the same turn;
start-up is reported separately. Memory is the peak of the process tree (proportional set size:
shared pages count once).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

WORKLOADS: dict[str, dict[str, object]] = {
    "W1": {
        "what": "20 clients x 250 CIFAR-size images, 5 epochs, batch 100, CNN4",
        "clients": 20, "samples": 250, "size": 32, "channels": 3, "participation": 1.0,
        "epochs": 5, "batch": 100, "group": "cnn4", "block": 1, "turns": 6, "target": 0.95,
    },
    "W2": {
        "what": "200 clients x 20 images, 20 % participation, 1 epoch, batch 10, CNN4",
        "clients": 200, "samples": 20, "size": 32, "channels": 3, "participation": 0.2,
        "epochs": 1, "batch": 10, "group": "cnn4", "block": 4, "turns": 8, "target": 1.05,
    },
    "W3": {
        "what": "100 clients of digits, perceptron 64-128-10, 20 %, 1 epoch, batch 16",
        "clients": 100, "samples": 0, "size": 8, "channels": 1, "participation": 0.2,
        "epochs": 1, "batch": 16, "group": "mlp", "block": 50, "turns": 10, "target": 1.5,
    },
    "M1000": {
        "what": "memory: 1,000 virtual clients of CNN4 that keep their models, 8 images each",
        "clients": 1000, "samples": 8, "size": 32, "channels": 3, "participation": 1.0,
        "epochs": 1, "batch": 8, "group": "cnn4", "block": 1, "turns": 2, "target": 0.0,
    },
}  # fmt: skip
LR, SEED, THREADS = 0.01, 0, 2
PAUSE = 0.1  # seconds
MODES = ("loop", "serial", "ray")


def experiment(name: str, root: Path, mode: str) -> object:
    """The workload as an experiment on a parquet file of noise, or on the digits."""
    from fedray.runtime.resolve import from_tree

    w = WORKLOADS[name]
    data: dict[str, object] = {"source": "digits"}
    if w["samples"]:
        data = {"source": "parquet", "root": str(make_images(name, root))}
    return from_tree(
        {
            "algorithm": "local" if name == "M1000" else "fedavg",
            "seed": SEED, "rounds": 100_000, "participation": w["participation"],
            "local_epochs": w["epochs"], "batch_size": w["batch"], "lr": LR,
            "eval_every": 0, "checkpoint_every": 0, "workers": 2,
            "threads": THREADS if mode == "serial" else 1,
            "model": {"group": w["group"], "feature_dim": 128 if w["group"] == "mlp" else 512},
            "data": {**data, "clients": w["clients"], "partition": "iid",
                     "test_fraction": 0.01 if w["samples"] else 0.25},
        }
    )  # fmt: skip


def make_images(name: str, root: Path) -> Path:
    """Write the workload's images (noise: only their number and size matter) as parquet."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    w = WORKLOADS[name]
    folder = root / name
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    # One more image per client is its test split; the sizes named above are what it trains on.
    count = int(w["clients"]) * (int(w["samples"]) + (3 if int(w["samples"]) > 100 else 1))
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        pixels = rng.integers(0, 256, (int(w["size"]), int(w["size"]), 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=0)
        rows.append({"bytes": buffer.getvalue(), "path": None})
    labels = rng.integers(0, 10, count)
    pq.write_table(
        pa.table({"image": rows, "label": labels}), folder / "train-00000-of-00001.parquet"
    )
    names = {"class_names": [str(i) for i in range(10)]}
    (folder / "dataset_info.json").write_text(json.dumps(names))
    return folder


def loop_rounds(assembly: object) -> tuple[Callable[[int], None], Callable[[], dict[str, object]]]:
    """The bare loop: plain PyTorch, one process, no abstraction; only the inputs are fedray's."""
    import torch
    import torch.nn.functional as F

    from fedray.models import Pixels

    a = assembly
    w = a.experiment
    architecture = a.models.architectures[0]
    model = a.models.empty(architecture)
    weights = {name: value.clone() for name, value in a.models.initial(architecture).items()}
    images = [torch.from_numpy(a.data.images.images[index]) for index in a.data.train]
    labels = [torch.from_numpy(a.data.images.labels[index]) for index in a.data.train]
    keep: dict[int, dict[str, torch.Tensor]] = {}
    averages = w.algorithm.name == "fedavg"

    def one_round(number: int) -> None:
        nonlocal weights
        count = round(w.participation * w.data.clients)
        cohort = range(count)
        if count < w.data.clients:
            random = a.streams.numpy("participation", round_=number)
            cohort = sorted(random.choice(w.data.clients, size=count, replace=False))
        total = sum(len(labels[client]) for client in cohort)
        mean = {name: torch.zeros_like(value) for name, value in weights.items()}
        for client in cohort:
            model.load_state_dict(weights if averages else keep.get(client, weights))
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=w.lr)
            random = a.streams.torch("batches", round_=number, client=int(client))
            for _ in range(w.local_epochs):
                order = torch.randperm(len(labels[client]), generator=random)
                for index in order.split(w.batch_size):
                    x = images[client][index].float() / 127.5 - 1
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(Pixels(x)).logits, labels[client][index])
                    loss.backward()
                    optimizer.step()
            trained = {name: value.detach().clone() for name, value in model.state_dict().items()}
            if averages:
                for name, value in trained.items():
                    mean[name] += value * (len(labels[client]) / total)
            else:
                keep[int(client)] = trained
        if averages:
            weights = mean

    return one_round, lambda: weights


def serve(name: str, mode: str, root: Path) -> None:
    """Be one of the three processes: do a round whenever a line comes in, say how long it took."""
    started = time.time()
    import torch

    from fedray.federation import Federation
    from fedray.runtime.assembly import Assembly

    torch.set_num_threads(THREADS)
    assembly = Assembly(experiment(name, root, mode))
    pool = None
    if mode == "loop":
        one_round, final = loop_rounds(assembly)
    else:
        if mode == "serial":
            from fedray.runtime.serial import SerialExecutor

            executor = SerialExecutor(assembly, torch.device("cpu"))
        else:
            from fedray.runtime.cluster import connect
            from fedray.runtime.pool import WorkerPool
            from fedray.runtime.ray_executor import RayExecutor

            connect(num_cpus=2)
            pool = WorkerPool(assembly.experiment)
            executor = RayExecutor(assembly, pool)
        federation = Federation(
            assembly.algorithm, executor, assembly.gate, assembly.plan,
            assembly.server(torch.device("cpu")), assembly.streams,
        )  # fmt: skip
        rounds = federation.rounds()
        next(rounds)  # what precedes round 1

        def one_round(number: int) -> None:
            next(rounds)

        def final() -> dict[str, object]:
            return dict(federation.snapshot.server.get("model", {}))

    say = os.fdopen(os.dup(1), "w")
    for number, line in enumerate(sys.stdin, start=1):
        if line.startswith("end"):
            torch.save(final(), line.split()[1])
            break
        begun = time.perf_counter()
        one_round(number)
        seconds = time.perf_counter() - begun
        since_start = time.time() - started
        print(json.dumps({"seconds": seconds, "since_start": since_start}), file=say, flush=True)
    if pool is not None:
        pool.close()


def tree_memory(pid: int) -> int:
    """Proportional set size of a process and all below it, in bytes."""
    import psutil

    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in family:
        try:
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


class Side:
    """One of the three processes, from outside."""

    def __init__(self, name: str, mode: str, root: Path) -> None:
        command = [sys.executable, __file__, "--serve", name, mode, str(root)]
        env = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "RAY_AUTH_MODE": "disabled"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=env,
        )  # fmt: skip
        self.peak = 0
        self._watching = True
        self._watch = threading.Thread(target=self._sample, daemon=True)

    def round(self) -> dict[str, float]:
        """Do one round; returns its seconds and the seconds since the process began."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit("a benchmark process died; run it with --serve to see why")
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer

    def measure_memory(self) -> None:
        """Sample the process tree's memory from now on."""
        self._watch.start()

    def end(self, path: Path) -> None:
        """Write the final parameters and stop."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"end {path}\n")
        self.process.stdin.close()
        self.process.wait(timeout=120)
        self._watching = False

    def _sample(self) -> None:
        while self._watching and self.process.poll() is None:
            self.peak = max(self.peak, tree_memory(self.process.pid))
            time.sleep(0.5)


def compare(name: str, turns: int, root: Path) -> None:
    """Run one workload and print its rows."""
    import torch

    w = WORKLOADS[name]
    print(f"\n{name}: {w['what']}")
    if w["samples"]:
        make_images(name, root)
    sides = {mode: Side(name, mode, root) for mode in MODES}
    first = {mode: side.round() for mode, side in sides.items()}  # includes start-up
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    block = int(w["block"])
    for turn in range(turns + 1):
        for mode, side in sides.items():
            time.sleep(PAUSE)
            took = sum(side.round()["seconds"] for _ in range(block)) / block
            if turn >= 1:
                seconds[mode].append(took)
    for side in sides.values():  # after the timing: sampling costs time itself
        side.measure_memory()
    for side in sides.values():
        side.round()
    time.sleep(1.0)
    finals = {}
    for mode, side in sides.items():
        side.end(root / f"{name}-{mode}.pt")
        finals[mode] = torch.load(root / f"{name}-{mode}.pt")
    for mode in MODES:
        ratio = [mine / loop for mine, loop in zip(seconds[mode], seconds["loop"], strict=True)]
        difference = max(
            float((finals[mode][key].double() - value.double()).abs().max())
            for key, value in finals["loop"].items()
        )
        goal = f"  (aim {w['target']:.2f})" if mode == "ray" else ""
        print(
            f"  {mode:6s} {1e3 * statistics.median(seconds[mode]):9.1f} ms/round  "
            f"ratio {statistics.median(ratio):5.2f} [{min(ratio):.2f}, {max(ratio):.2f}]{goal}\n"
            f"         first round after {first[mode]['since_start']:5.1f} s, "
            f"peak {sides[mode].peak / 1e6:6.0f} MB, parameters within {difference:.1e}"
        )
        if difference > 1e-4:
            raise SystemExit(f"{name}: {mode} did not do the same work as the loop")


def many_clients(root: Path) -> None:
    """Peak memory of 1,000 virtual clients whose models are kept between rounds."""
    name = "M1000"
    print(f"\n{name}: {WORKLOADS[name]['what']}")
    side = Side(name, "ray", root)
    side.measure_memory()
    took = [side.round()["seconds"] for _ in range(int(WORKLOADS[name]["turns"]))]
    side.end(root / f"{name}.pt")
    print(f"  ray    {took[-1]:9.1f} s/round, peak of the process tree {side.peak / 1e9:.2f} GB")


def main() -> None:
    """Parse the command line and run."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    cli.add_argument("--turns", type=int, help="timed turns per workload")
    cli.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = cli.parse_args()
    if args.serve:
        serve(args.serve[0], args.serve[1], Path(args.serve[2]))
        return
    print(f"{os.cpu_count()} cores, {THREADS} threads in every mode")
    with tempfile.TemporaryDirectory() as root:
        for name in args.only:
            if name == "M1000":
                many_clients(Path(root))
            else:
                compare(name, args.turns or int(WORKLOADS[name]["turns"]), Path(root))


if __name__ == "__main__":
    main()
