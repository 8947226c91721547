"""What a round costs with 100 to 100,000 clients: seconds, memory, traffic, disk.

    python -m benchmarks.scale                            perceptrons, all sizes
    python -m benchmarks.scale --model cnn4 --clients 10000 --kind stateful --participation 0.01
    python -m benchmarks.scale --nodes 20                 a simulated cluster of so many nodes

Each row is a process of its own: a run of FedAvg (clients keep nothing) or of local training (every
client keeps its model) on noise, on Ray with two workers, with a checkpoint every round and without
evaluation. Of stateful clients all, or the share --filled, have a state before the first measured
round, as after many rounds. A round has 20 clients, or a share of all of them. Memory is the peak
of the process tree from its start on (proportional set size: shared pages count once).

Prints a table, and writes scale.json and scale.png (both axes logarithmic) into --out. Rows that
scale.json has are not measured again.
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

SIZES = (100, 1000, 10_000, 100_000)
KINDS = {"stateless": "fedavg", "stateful": "local"}
COHORT = 20
IMAGES = 3
"""Of each client: two to train with, one to test."""
MODELS = {"mlp": (8, 128), "cnn4": (32, 512)}
"""Pixels to a side, and width of the features."""
WARM_UP = 2
SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Case:
    """One row that is asked for; `participation` is 0 for rounds of `COHORT` clients."""

    clients: int
    kind: str
    model: str
    participation: float
    rounds: int
    evaluates: bool = False
    filled: float = 1.0

    @property
    def cohort(self) -> int:
        """Clients of a round."""
        share = round(self.participation * self.clients)
        return min(self.clients, max(1, share) if self.participation else COHORT)


@dataclass(frozen=True)
class Row:
    """What was measured of a case; bytes and seconds."""

    clients: int
    kind: str
    model: str
    cohort: int
    start_up_s: float
    round_s: float
    server_cpu_s: float
    memory_bytes: int
    server_bytes: int
    up_bytes: float
    down_bytes: float
    states_bytes: int
    written_bytes: float
    evaluation_s: float


# --- in the process of a row --------------------------------------------------------------------


def experiment(case: Case, root: Path) -> Any:
    """The case as an experiment on a parquet file of noise."""
    from fedray.runtime.resolve import from_tree

    size, width = MODELS[case.model]
    return from_tree(
        {
            "algorithm": KINDS[case.kind],
            "rounds": case.rounds + WARM_UP + 1,  # the last one evaluates
            "participation": case.cohort / case.clients,
            "local_epochs": 1,
            "batch_size": 8,
            "eval_every": 0,
            "checkpoint_every": 1,
            "workers": 2,
            "model": {"group": case.model, "feature_dim": width},
            "data": {
                "source": "parquet",
                "root": str(images(case.clients, size, root)),
                "channels": 1 if case.model == "mlp" else 3,
                "clients": case.clients,
                "partition": "iid",
                "test_fraction": 1 / IMAGES,
            },
        }
    )


def images(clients: int, size: int, root: Path) -> Path:
    """Write images of noise as parquet, once: only their number and size matter."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder, count = root / f"{clients}x{size}", IMAGES * clients
    if folder.exists():
        return folder
    rng, rows = np.random.default_rng(0), []
    for _ in range(count):
        buffer = io.BytesIO()
        pixels = rng.integers(0, 256, (size, size), dtype=np.uint8)
        Image.fromarray(pixels).convert("RGB").save(buffer, "PNG", compress_level=0)
        rows.append({"bytes": buffer.getvalue(), "path": None})
    table = pa.table({"image": rows, "label": rng.integers(0, 10, count)})
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "train-00000-of-00001.parquet")
    (folder / "dataset_info.json").write_text(json.dumps({"class_names": list("0123456789")}))
    return folder


def serve(case: Case, root: Path) -> None:
    """Run the case; print a line of JSON with what this process has seen."""
    from fedray.core import ClientState
    from fedray.records import Round
    from fedray.runtime.cluster import connect
    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import RayExecutor
    from fedray.runtime.session import Session

    made: list[tuple[Any, RayExecutor]] = []

    def make(assembly: Any) -> RayExecutor:
        made.append((assembly, RayExecutor(assembly, pool)))
        return made[0][1]

    asked = experiment(case, root)
    began = time.time()
    connect(num_cpus=2)
    pool = WorkerPool(asked)
    session = Session(asked, root / "out", make)
    rounds = session.rounds()
    next(rounds)
    started = time.time() - began
    assembly, executor = made[0]
    if case.kind == "stateful":
        first = assembly.models.initial(case.model)
        for client in range(round(case.filled * case.clients)):
            model = {name: value + 1e-6 * client for name, value in first.items()}
            executor.states.put(client, ClientState(model))
    os.sync()  # checkpoints do not wait for what was written until now
    done: list[Round] = []
    seconds: list[float] = []
    busy: list[float] = []
    written: list[int] = []
    while len(done) < case.rounds + WARM_UP:
        clock, before, cpu = time.perf_counter(), _written(), time.process_time()
        done.append(next(rounds))
        session.settle()
        seconds.append(time.perf_counter() - clock)
        busy.append(time.process_time() - cpu)
        written.append(_written() - before)
    seen = {
        "start_up_s": started,
        "round_s": statistics.median(seconds[WARM_UP:]),
        "server_cpu_s": statistics.median(busy[WARM_UP:]),
        "server_bytes": _pss(os.getpid()),
        "up_bytes": statistics.median(r.up.total_bytes for r in done[WARM_UP:]),
        "down_bytes": statistics.median(r.down.total_bytes for r in done[WARM_UP:]),
        "states_bytes": sum(p.stat().st_size for p in executor.states.folder.glob("*")),
        "written_bytes": statistics.median(written[WARM_UP:]),
        "evaluation_s": 0.0,
    }
    if case.evaluates:
        clock = time.perf_counter()
        next(rounds)
        seen["evaluation_s"] = time.perf_counter() - clock
    rounds.close()
    pool.close()
    print(json.dumps(seen), flush=True)


def _written() -> int:
    """Bytes that this process has written to files."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["wchar"])


# --- from outside -------------------------------------------------------------------------------


def _pss(pid: int) -> int:
    """Proportional set size of a process, in bytes; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def tree_memory(pid: int) -> int:
    """Proportional set size of a process and all below it, in bytes."""
    import psutil

    try:
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    return sum(_pss(member) for member in family)


def child(words: Sequence[str], errors: Path) -> tuple[dict[str, Any], int]:
    """Run this file with some words; what it printed, and the peak of its memory.

    Raises:
        SystemExit: when it fails, with what it said.
    """
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale", *words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"},
        )
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, tree_memory(process.pid))
            time.sleep(SAMPLE_SECONDS)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        printed, _ = process.communicate()
    finally:
        process.terminate()
        watcher.join()
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        raise SystemExit(
            f"{' '.join(words)}: exit code {process.returncode}\n{errors.read_text()[-4000:]}"
        )
    return json.loads(lines[-1]), peak


def measure(case: Case) -> Row:
    """Run one case in a process and a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fedray-scale-") as folder:
        words = ["--serve", json.dumps(asdict(case)), folder]
        os.environ["FEDRAY_CACHE"] = str(Path(folder) / "cache")
        found, peak = child(words, Path(folder) / "errors")
    return Row(case.clients, case.kind, case.model, case.cohort, memory_bytes=peak, **found)


COLUMNS = {
    "clients": ("clients", 1, "{:,.0f}"),
    "kind": ("clients keep", 0, "{}"),
    "model": ("model", 0, "{}"),
    "cohort": ("a round", 1, "{:,.0f}"),
    "start_up_s": ("start-up, s", 1, "{:.1f}"),
    "round_s": ("round, s", 1, "{:.3f}"),
    "server_cpu_s": ("of it server's CPU, s", 1, "{:.3f}"),
    "memory_bytes": ("memory, MB", 1e-6, "{:,.0f}"),
    "server_bytes": ("of it server, MB", 1e-6, "{:,.0f}"),
    "up_bytes": ("up, MB", 1e-6, "{:.2f}"),
    "down_bytes": ("down, MB", 1e-6, "{:.2f}"),
    "states_bytes": ("states, MB", 1e-6, "{:,.0f}"),
    "written_bytes": ("server writes, MB", 1e-6, "{:.2f}"),
    "evaluation_s": ("a round that tests all, s", 1, "{:.1f}"),
}


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| " + " | ".join(title for title, _, _ in COLUMNS.values()) + " |"]
    lines.append("|" + "---|" * len(COLUMNS))
    for row in rows:
        cells = []
        for name, (_, scale, form) in COLUMNS.items():
            value = getattr(row, name)
            cells.append(form.format(value * scale if scale else value))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


PANELS: dict[str, Callable[[Row], float]] = {
    "seconds a round": lambda row: row.round_s,
    "of them the server's processor time": lambda row: row.server_cpu_s,
    "peak memory of all processes, GB": lambda row: row.memory_bytes * 1e-9,
    "up and down a round, MB": lambda row: (row.up_bytes + row.down_bytes) * 1e-6,
}
COLOURS = {
    ("mlp", "stateless"): "tab:blue",
    ("mlp", "stateful"): "tab:orange",
    ("cnn4", "stateless"): "tab:green",
    ("cnn4", "stateful"): "tab:red",
}


def figure(rows: Sequence[Row], path: Path) -> None:
    """Time, memory and traffic of a round over the number of clients, all logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawing, grid = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for axis, (title, value) in zip(grid.flat, PANELS.items(), strict=True):
        for line in series(rows):
            points = [(row.clients, value(row)) for row in line if value(row) > 0]
            if points:
                axis.loglog(*zip(*points, strict=True), **_look(line[0]))
        axis.set_xlabel("clients")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    memory = grid[1, 0]
    memory.axhline(4, color="black", linewidth=0.8)
    memory.set_ylim(1, 10)
    drawing.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    drawing.savefig(path, dpi=75)
    plt.close(drawing)


def _look(row: Row) -> dict[str, Any]:
    """Colour by model and kind, dashes by how many clients a round has."""
    is_fixed = row.cohort == COHORT
    what = "send a model, keep none" if row.kind == "stateless" else "keep a model, send none"
    rate = f"{COHORT} a round" if is_fixed else f"{row.cohort / row.clients:.0%} a round"
    return {
        "color": COLOURS[row.model, row.kind],
        "linestyle": "-" if is_fixed else "--",
        "marker": "o" if is_fixed else "s",
        "markersize": 4,
        "label": f"{row.model}, {what}, {rate}",
    }


def series(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each line of the figure, by clients."""
    lines: dict[tuple[str, str, bool], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.clients):
        lines.setdefault((row.model, row.kind, row.cohort == COHORT), []).append(row)
    return [lines[key] for key in sorted(lines, reverse=True)]


def fits(rows: Sequence[Row]) -> list[str]:
    """By model and kind, what a round and the memory cost per client of the round and of all."""
    import numpy as np

    lines = []
    for model, kind in sorted({(row.model, row.kind) for row in rows}):
        mine = [row for row in rows if (row.model, row.kind) == (model, kind)]
        if len(mine) < 4:
            continue
        of = np.array([[1.0, row.cohort, row.clients] for row in mine])
        for what, unit, scale in (
            ("round_s", "ms", 1e3),
            ("server_cpu_s", "ms", 1e3),
            ("memory_bytes", "kB", 1e-3),
            ("server_bytes", "kB", 1e-3),
        ):
            measured = np.array([getattr(row, what) * scale for row in mine])
            relative = of / measured[:, None]  # every row counts the same, however large
            (base, each, idle), *_ = np.linalg.lstsq(relative, np.ones(len(mine)), rcond=None)
            off = float(np.abs(relative @ [base, each, idle] - 1).max())
            lines.append(
                f"{model}, {kind}: {what} = {base:,.4g} {unit} + {each:.4g} {unit} a client of the "
                f"round + {idle:.3g} {unit} a client (off by at most {off:.0%})"
            )
    return lines


# --- simulated nodes ----------------------------------------------------------------------------


def serve_nodes(nodes: int, rounds: int, root: Path) -> None:
    """A run on a simulated cluster with one worker a node; print a line of JSON."""
    import ray
    from ray.cluster_utils import Cluster

    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import RayExecutor
    from fedray.runtime.session import Session

    began = time.time()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, wait=False)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    up = time.time()
    case = Case(100 * nodes, "stateful", "mlp", 0.1, rounds)
    asked = experiment(case, root).model_copy(update={"workers": nodes})
    pool = WorkerPool(asked)
    pool.wait()
    started = time.time()
    session = Session(asked, root / "out", lambda assembly: RayExecutor(assembly, pool))
    seconds = []
    clock = time.perf_counter()
    for _ in session.rounds():
        session.settle()
        seconds.append(time.perf_counter() - clock)
        clock = time.perf_counter()
    places = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    seen = {
        "nodes": len(places) - 1,
        "cluster_s": up - began,
        "workers_s": started - up,
        "first_round_s": sum(seconds[:2]),
        "round_s": statistics.median(seconds[2:]),
        "cohort": case.cohort,
    }
    pool.close()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(seen), flush=True)


def simulate(counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure clusters of so many nodes, on this machine."""
    found = []
    for nodes in counts:
        with tempfile.TemporaryDirectory(prefix="fedray-scale-") as folder:
            os.environ["FEDRAY_CACHE"] = str(Path(folder) / "cache")
            words = ["--serve-nodes", str(nodes), str(rounds), folder]
            seen, peak = child(words, Path(folder) / "errors")
        found.append({**seen, "memory_bytes": peak})
        print(
            f"{seen['nodes']} nodes: cluster up in {seen['cluster_s']:.1f} s, workers in "
            f"{seen['workers_s']:.1f} s, first round {seen['first_round_s']:.1f} s, then "
            f"{seen['round_s']:.3f} s for {seen['cohort']} clients, {peak * 1e-6:,.0f} MB",
            flush=True,
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and measure."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    cli.add_argument("--clients", nargs="+", type=int, default=list(SIZES))
    cli.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS))
    cli.add_argument("--model", nargs="+", choices=list(MODELS), default=["mlp"])
    cli.add_argument("--participation", nargs="+", type=float, default=[0, 0.01])
    cli.add_argument("--rounds", type=int, default=6)
    cli.add_argument("--evaluate", action="store_true", help="test all clients in a last round")
    cli.add_argument("--filled", type=float, default=1.0, help="share of clients with a state")
    cli.add_argument("--seconds", type=float, default=1e9, help="begin no row after so many")
    cli.add_argument("--nodes", nargs="+", type=int, default=[])
    cli.add_argument("--out", type=Path, default=Path("scale"))
    cli.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    cli.add_argument("--serve-nodes", nargs=3, help=argparse.SUPPRESS)
    args = cli.parse_args(argv)
    if args.serve:
        serve(Case(**json.loads(args.serve[0])), Path(args.serve[1]))
        return 0
    if args.serve_nodes:
        nodes, rounds, root = args.serve_nodes
        serve_nodes(int(nodes), int(rounds), Path(root))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    if args.nodes:
        found = simulate(args.nodes, args.rounds)
        (args.out / "nodes.json").write_text(json.dumps(found, indent=1) + "\n")
        return 0
    path = args.out / "scale.json"
    rows = [Row(**row) for row in json.loads(path.read_text())] if path.exists() else []
    began = time.monotonic()
    for model, kind, share, clients in product(
        args.model, args.kind, args.participation, args.clients
    ):
        case = Case(clients, kind, model, share, args.rounds, args.evaluate, args.filled)
        is_known = (clients, kind, model, case.cohort) in {row[:4] for row in map(astuple, rows)}
        if is_known or time.monotonic() - began > args.seconds:
            continue
        rows.append(measure(case))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("\n" + table(rows) + "\n")
    print("\n".join(fits(rows)))
    assert [field.name for field in fields(Row)] == list(COLUMNS)
    figure(rows, args.out / "scale.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
