"""The workloads of `overhead.py`, and the plain PyTorch loop that does the same work."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LR, SEED = 0.01, 0
Tensors = Mapping[str, Any]
"""Parameters by name; torch is imported where it is needed."""


@dataclass(frozen=True)
class Workload:
    """What one workload is.

    Attributes:
        what: in words.
        clients: how many.
        samples: training images per client, noise of CIFAR's size; 0: the digits, divided.
        participation: the share of clients in a round.
        epochs: local epochs.
        batch: batch size.
        group: `model.group`.
        block: rounds per turn.
        turns: timed turns.
        aims: the most that Ray may take, of a round of each baseline.
        algorithm: the method.
    """

    what: str
    clients: int
    samples: int
    participation: float
    epochs: int
    batch: int
    group: str
    block: int
    turns: int
    aims: Mapping[str, float]
    algorithm: str = "fedavg"


WORKLOADS = {
    "W1": Workload(
        "20 clients x 250 CIFAR-size images, 5 epochs, batch 100, CNN4",
        20, 250, 1.0, 5, 100, "cnn4", 1, 6, {"loop": 0.70, "loop-kept": 1.0},
    ),
    "W2": Workload(
        "200 clients x 20 images, 20 % participation, 1 epoch, batch 10, CNN4",
        200, 20, 0.2, 1, 10, "cnn4", 4, 8, {"loop": 0.75, "loop-kept": 0.9},
    ),
    "W3": Workload(
        "100 clients of digits, perceptron 64-128-10, 20 %, 1 epoch, batch 16",
        100, 0, 0.2, 1, 16, "mlp", 50, 10, {"loop": 1.25, "loop-kept": 1.25},
    ),
    "M1000": Workload(
        "memory: 1,000 virtual clients of CNN4 that keep their models, 8 images each",
        1000, 8, 1.0, 1, 8, "cnn4", 1, 2, {}, "local",
    ),
}  # fmt: skip


def experiment(name: str, root: Path, threads: int) -> Any:
    """The workload as an experiment on a parquet file of noise, or on the digits."""
    from fedray.runtime.resolve import from_tree

    w = WORKLOADS[name]
    data: dict[str, object] = {"source": "digits", "test_fraction": 0.25}
    if w.samples:
        data = {"source": "parquet", "root": str(make_images(name, root)), "test_fraction": 0.01}
    return from_tree(
        {
            "algorithm": w.algorithm,
            "seed": SEED,
            "rounds": 100_000,
            "participation": w.participation,
            "local_epochs": w.epochs,
            "batch_size": w.batch,
            "lr": LR,
            "eval_every": 0,
            "checkpoint_every": 0,
            "workers": 2,
            "threads": threads,
            "model": {"group": w.group, "feature_dim": 128 if w.group == "mlp" else 512},
            "data": {**data, "clients": w.clients, "partition": "iid"},
        }
    )


def make_images(name: str, root: Path) -> Path:
    """Write the workload's images (noise: only their number and size matter) as parquet."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    w, folder = WORKLOADS[name], root / name
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    # One more image per client is its test split; the sizes named above are what it trains on.
    count = w.clients * (w.samples + (3 if w.samples > 100 else 1))
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        buffer = io.BytesIO()
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=0)
        rows.append({"bytes": buffer.getvalue(), "path": None})
    table = pa.table({"image": rows, "label": rng.integers(0, 10, count)})
    pq.write_table(table, folder / "train-00000-of-00001.parquet")
    names = {"class_names": [str(i) for i in range(10)]}
    (folder / "dataset_info.json").write_text(json.dumps(names))
    return folder


class BareLoop:
    """FedAvg as plain PyTorch: one process, no abstraction; only the inputs are fedray's.

    Args:
        assembly: the parts of the experiment.

    Attributes:
        weights: the global model.
    """

    def __init__(self, assembly: Any) -> None:
        import torch

        data, models = assembly.data, assembly.models
        architecture = models.architectures[0]
        self._experiment, self._streams = assembly.experiment, assembly.streams
        self._model = models.empty(architecture)
        self._images = [torch.from_numpy(data.images.images[index]) for index in data.train]
        self._labels = [torch.from_numpy(data.images.labels[index]) for index in data.train]
        initial = models.initial(architecture)
        self.weights = {name: value.clone() for name, value in initial.items()}

    def round(self, number: int) -> None:
        """One round."""
        import torch

        w, labels = self._experiment, self._labels
        count = round(w.participation * w.data.clients)
        cohort = list(range(count))
        if count < w.data.clients:
            random = self._streams.numpy("participation", round_=number)
            cohort = sorted(random.choice(w.data.clients, size=count, replace=False).tolist())
        total = sum(len(labels[client]) for client in cohort)
        mean = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        for client in cohort:
            self._train(client, number)
            for name, value in self._model.state_dict().items():
                mean[name] += value.detach().clone() * (len(labels[client]) / total)
        self.weights = mean

    def _train(self, client: int, number: int) -> None:
        """The local epochs of one client, from the global model."""
        import torch
        import torch.nn.functional as F

        from fedray.models import Pixels

        w, model = self._experiment, self._model
        images, labels = self._images[client], self._labels[client]
        model.load_state_dict(self.weights)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=w.lr)
        random = self._streams.torch("batches", round_=number, client=client)
        for _ in range(w.local_epochs):
            order = torch.randperm(len(labels), generator=random)
            for index in order.split(w.batch_size):
                x = images[index].float() / 127.5 - 1
                optimizer.zero_grad()
                loss = F.cross_entropy(model(Pixels(x)).logits, labels[index])
                loss.backward()
                optimizer.step()


def rounds_of(
    mode: str, assembly: Any
) -> tuple[Callable[[int], object], Callable[[], Tensors], Callable[[], None]]:
    """What does one round in a mode, what gives the global model, and what ends it all.

    Args:
        mode: loop, loop-kept (with the allocator's settings of fedray's workers), serial or ray.
        assembly: the parts of the experiment.
    """
    if mode.startswith("loop"):
        from fedray.runtime.memory import keep_freed_memory

        if mode == "loop-kept":
            keep_freed_memory()
        loop = BareLoop(assembly)
        return loop.round, lambda: loop.weights, lambda: None
    import torch

    from fedray.federation import Federation

    cpu = torch.device("cpu")
    executor, close = _executor(mode, assembly)
    federation = Federation(
        assembly.algorithm, executor, assembly.gate, assembly.plan, assembly.server(cpu),
        assembly.streams,
    )  # fmt: skip
    rounds = federation.rounds()
    next(rounds)  # what precedes round 1
    return (
        lambda _: next(rounds),
        lambda: dict(federation.snapshot.server.get("model", {})),
        close,
    )


def _executor(mode: str, assembly: Any) -> tuple[Any, Callable[[], None]]:
    """Where steps run, and what ends it."""
    if mode == "serial":
        import torch

        from fedray.runtime.serial import SerialExecutor

        return SerialExecutor(assembly, torch.device("cpu")), lambda: None
    from fedray.runtime.cluster import connect
    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import RayExecutor

    connect(num_cpus=2)
    pool = WorkerPool(assembly.experiment)
    return RayExecutor(assembly, pool), pool.close
