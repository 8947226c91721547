"""Cost of a round with 100 to 100,000 clients: seconds, memory, traffic, disk.

    python -m benchmarks.scale                            perceptrons, all sizes
    python -m benchmarks.scale --model cnn4 --clients 10000 --kind stateful --participation 0.01

Each row is a run in a separate process, of FedAvg (stateless clients) or of local training (every
client stores its model), on random images, on Ray with two workers, with a checkpoint every round
and without evaluation. All stateful clients have a state before the first measured round, as after
many rounds. A round has 20 clients, or a share of all clients. Memory is the peak of the process
tree, start-up included.

The benchmark prints a table, and writes scale.json and scale.png (both axes logarithmic) to --out.
Rows that scale.json already has are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import Child, PeakMemory, environment, memory, serve, write_noise

SIZES = (100, 1000, 10_000, 100_000)
KINDS = {"stateless": "fedavg", "stateful": "local"}
COHORT = 20
IMAGES = 3
"""Images per client: two for training, one for testing."""
MODELS = {"mlp": (8, 128), "cnn4": (32, 512)}
"""Pixels per side, and feature width."""
WARM_UP = 2
Row = dict[str, Any]
"""The measurements of a case in bytes and seconds, by name."""


@dataclass(frozen=True)
class Case:
    """A row to measure; `participation` 0 means rounds of `COHORT` clients."""

    clients: int
    kind: str
    model: str
    participation: float
    rounds: int

    @property
    def cohort(self) -> int:
        """Number of clients in a round."""
        share = round(self.participation * self.clients)
        return min(self.clients, max(1, share) if self.participation else COHORT)


# --- in the process of a row ----------------------------------------------------------------------


def experiment(case: Case, root: Path) -> Any:
    """Return the experiment of a case on noise below `root`."""
    from fedray.runtime.resolve import from_tree

    size, width = MODELS[case.model]
    return from_tree(
        {
            "algorithm": KINDS[case.kind],
            "rounds": case.rounds + WARM_UP,
            "participation": case.cohort / case.clients,
            "local_epochs": 1,
            "batch_size": 8,
            "eval_every": 0,
            "checkpoint_every": 1,
            "workers": 2,
            "model": {"group": case.model, "feature_dim": width},
            "data": {
                "source": "parquet",
                "root": str(write_noise(root / "images", IMAGES * case.clients, size)),
                "channels": 1 if case.model == "mlp" else 3,
                "clients": case.clients,
                "partition": "iid",
                "test_fraction": 1 / IMAGES,
            },
        }
    )


def run(case: Case, root: Path) -> dict[str, Any]:
    """Run a case in this process; return those fields of its row that this process can measure."""
    from fedray.core import ClientState
    from fedray.runtime.cluster import connect
    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import RayExecutor, Worker
    from fedray.runtime.session import Session

    parts: list[tuple[Any, RayExecutor]] = []

    def make(assembly: Any) -> RayExecutor:
        parts.append((assembly, RayExecutor(assembly, pool)))
        return parts[0][1]

    setting = experiment(case, root)
    began = time.time()
    connect(num_cpus=2)
    pool = WorkerPool(Worker, setting)
    session = Session(setting, root / "out", make)
    rounds = session.rounds()
    next(rounds)
    start_up = time.time() - began
    assembly, executor = parts[0]
    if case.kind == "stateful":
        initial = assembly.models.initial(case.model)
        for first in range(0, case.clients, 1000):
            clients = range(first, min(first + 1000, case.clients))
            models = {c: {n: value + 1e-6 * c for n, value in initial.items()} for c in clients}
            executor.states.put({client: ClientState(model) for client, model in models.items()})
    os.sync()  # checkpoints do not wait for earlier writes
    samples = [_measure_round(session, rounds) for _ in range(case.rounds + WARM_UP)][WARM_UP:]
    measured = {name: statistics.median(s[name] for s in samples) for name in samples[0]} | {
        "start_up_s": start_up,
        "server_bytes": memory(os.getpid()),
        "states_bytes": sum(p.stat().st_size for p in (root / "out").glob("states/*")),
    }
    rounds.close()
    pool.close()
    return measured


def _measure_round(session: Any, rounds: Any) -> dict[str, float]:
    clock, written, cpu = time.perf_counter(), _written(), time.process_time()
    record = next(rounds)
    session._states.wait()
    return {
        "round_s": time.perf_counter() - clock,
        "server_cpu_s": time.process_time() - cpu,
        "written_bytes": _written() - written,
        "up_bytes": record.up.total_bytes,
        "down_bytes": record.down.total_bytes,
    }


def _written() -> int:
    """Return the bytes that this process has written to files."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["wchar"])


# --- all rows -------------------------------------------------------------------------------------


def measure(case: Case) -> Row:
    """Run a case in a child process with its own folder and cache; return the row."""
    with tempfile.TemporaryDirectory(prefix="fedray-scale-") as folder:
        words = ["-m", "benchmarks.scale", "--serve", json.dumps(asdict(case)), folder]
        env = {**environment(), "FEDRAY_CACHE": str(Path(folder) / "cache")}
        child = Child("scale", words, Path(folder) / "log", env)
        with PeakMemory(child.pid) as peak:
            measured = child.ask("run")
            child.close()
    names = {"clients": case.clients, "kind": case.kind, "model": case.model, "cohort": case.cohort}
    return {**names, "memory_bytes": peak.bytes, **measured}


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, with MB instead of bytes."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    for name in [name for name in frame if name.endswith("_bytes")]:
        frame[f"{name.removesuffix('_bytes')}_mb"] = frame.pop(name) * 1e-6
    return frame.to_string(index=False, float_format="{:,.3f}".format)


def figure(rows: Sequence[Row], path: Path) -> None:
    """Draw time, memory and traffic of a round over the number of clients, all logarithmic."""
    import matplotlib.pyplot as plt
    import pandas as pd

    frame = pd.DataFrame(rows).sort_values("clients")
    share = (frame.cohort / frame.clients).map("{:.0%}".format)
    frame["a round"] = share.where(frame.cohort != COHORT, str(COHORT))
    panels = {
        "seconds a round": frame.round_s,
        "of them the server's processor time": frame.server_cpu_s,
        "peak memory of all processes, GB": frame.memory_bytes * 1e-9,
        "up and down a round, MB": (frame.up_bytes + frame.down_bytes) * 1e-6,
    }
    drawing, grid = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for axis, (title, values) in zip(grid.flat, panels.items(), strict=True):
        for names, line in frame.groupby(["model", "kind", "a round"]):
            label = "{}, {}, {} a round".format(*names)
            axis.loglog(line.clients, values[line.index], "o-", markersize=4, label=label)
        axis.set_xlabel("clients")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    grid[1, 0].axhline(4, color="black", linewidth=0.8)
    drawing.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    drawing.savefig(path, dpi=75)
    plt.close(drawing)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and measure."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--clients", nargs="+", type=int, default=list(SIZES))
    cli.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS))
    cli.add_argument("--model", nargs="+", choices=list(MODELS), default=["mlp"])
    cli.add_argument("--participation", nargs="+", type=float, default=[0, 0.01])
    cli.add_argument("--rounds", type=int, default=6)
    cli.add_argument("--out", type=Path, default=Path("scale"))
    cli.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = cli.parse_args(argv)
    if args.serve:
        case = Case(**json.loads(args.serve[0]))
        serve(lambda _: run(case, Path(args.serve[1])))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "scale.json"
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    for model, kind, share, clients in product(
        args.model, args.kind, args.participation, args.clients
    ):
        case = Case(clients, kind, model, share, args.rounds)
        measured = [(row["clients"], row["kind"], row["model"], row["cohort"]) for row in rows]
        if (clients, kind, model, case.cohort) in measured:
            continue
        rows.append(measure(case))
        print(table(rows[-1:]), flush=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n" + table(rows) + "\n")
    figure(rows, args.out / "scale.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
