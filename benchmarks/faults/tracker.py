"""A tracking server that hangs, fails, forgets to answer, dies; and drivers killed while they log.

A sweep of two trials logs through a proxy that misbehaves at random requests, to a real
`mlflow server`; in some episodes the process that logs is killed at a random moment and started
again. Afterwards the sweep is uploaded. Then every number is there once and nothing else is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.proxy import FAULTS, Proxy
from benchmarks.faults.tally import Tally
from fedray.config import Experiment
from fedray.files import write_json
from fedray.records import Costs, Round, Run, RunInfo, Traffic
from fedray.tracking import MlflowTracker, grouped

TRIALS = ("trial_0", "trial_1")
IMPATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "3", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
PATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}


def run(count: int, seed: int, folder: Path) -> Tally:
    """Inject `count` faults, some at a time, and look at what the server holds after each lot."""
    tally = Tally()
    with server(folder) as port:
        for episode in range(10 * count):
            if tally.count >= count:
                break
            draw = random.Random(f"{seed} {episode}")
            home = make_sweep(folder / str(episode), draw, episode)
            befell = log_badly(home, port, draw, f"e{episode}")
            wrong = look(home, f"http://127.0.0.1:{port}", f"e{episode}")
            for fault in befell:
                tally.add(fault, "all there, once")
            if wrong:
                tally.add_wrong(", ".join(befell), f"episode {episode}: {wrong}")
    return tally


# --- a real server -------------------------------------------------------------------------------


@contextlib.contextmanager
def server(folder: Path) -> Iterator[int]:
    """`mlflow server` on sqlite, on a free port of the loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "kept")]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True
        )
    try:
        await_health(process, port, folder / "server.log")
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_health(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return once the server answers."""
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        time.sleep(0.2)
    raise RuntimeError(f"mlflow server did not start:\n{log.read_text()}")


# --- a sweep, logged through faults --------------------------------------------------------------


def make_sweep(home: Path, draw: random.Random, episode: int) -> Path:
    """Two trials' folders with a result.json each; one in four has more metrics than a request."""
    wide = 1200 if episode % 4 == 3 else 20
    for seed, trial in enumerate(TRIALS):
        (home / trial).mkdir(parents=True)
        experiment = Experiment(name="digits", rounds=4, seed=seed)
        info = RunInfo(
            name="digits",
            scale="laptop",
            algorithm="fedavg",
            config=experiment.tree(),
            seed=seed,
            identity=experiment.identity("data"),
            versions={},
            partition_sha256="f" * 64,
            data_sha256="d" * 64,
        )
        rounds = [
            Round(r, 1.0, {f"m{i}": draw.random() for i in range(wide)}, up=Traffic({"w": r}))
            for r in range(5)
        ]
        done = Run(info, rounds, Costs(wall_seconds=5.0))
        write_json(home / trial / "result.json", done.to_json())
    return home


def log_badly(home: Path, port: int, draw: random.Random, name: str) -> list[str]:
    """Log a sweep through the proxy; returns which faults befell it."""
    rate = draw.choice([0.05, 0.2, 0.5])
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload(["mlflow", "fedray.tracking.live"])
    kills = draw.choice([0, 1, 1, 2])

    def choose(method: str, path: str) -> str | None:
        dangerous = path.endswith("runs/create")  # what has no name yet can be made twice
        return draw.choice(FAULTS) if draw.random() < (0.5 if dangerous else rate) else None

    with Proxy(port, choose, hang_seconds=4.0) as proxy:
        for attempt in range(kills + 1):
            driver = spawn.Process(target=drive, args=(proxy.uri, home, name, 0.01))
            driver.start()
            driver.join(draw.uniform(0.0, 2.0) if attempt < kills else 120)
            driver.kill()
            driver.join()
        proxy.settle()
    return [fault for fault, _, _ in proxy.faults] + ["driver killed"] * kills


def drive(uri: str, home: Path, name: str, pause: float, *, live: bool = True) -> None:
    """What the driver of a sweep, and the upload of one, tell the tracker."""
    os.environ.update(IMPATIENT if live else PATIENT)
    if live:
        sys.stderr = (home / "stderr.txt").open("a")
    tracker = MlflowTracker(uri, "faults", folder=home, live=live, retry_seconds=0.05)
    tracker.start_parent(name, {"search": "grid"}, {"sweep": name}, key=name, wait_seconds=5)
    results = {trial: read(home / trial) for trial in TRIALS}
    for trial, done in results.items():
        tracker.start(f"{name}-{trial}", trial, params={"seed": done.info.seed}, tags={})
    for r in range(5):
        for trial, done in results.items():
            tracker.round(f"{name}-{trial}", done.rounds[r])
            time.sleep(pause)
    for trial in TRIALS:
        files = [home / trial / "result.json"]
        tracker.finish(f"{name}-{trial}", "FINISHED", files, {"objective": 0.5})
    tracker.finish_parent("FINISHED", metrics={"best_objective": 0.5, "trials_finished": 2.0})
    tracker.close(wait_seconds=20 if live else 120)
    if not live and tracker.failure is not None:
        raise RuntimeError(tracker.failure)


def read(folder: Path) -> Run:
    """A trial's result."""
    from fedray.records import RunFolder

    return RunFolder(folder).read()


# --- what came of it -----------------------------------------------------------------------------


def look(home: Path, uri: str, name: str) -> str:
    """Upload what is missing; what is wrong then with what the server holds, or ""."""
    from mlflow import MlflowClient

    before = {trial: (home / trial / "result.json").read_bytes() for trial in TRIALS}
    for _ in range(2):
        drive(uri, home, name, 0.0, live=False)
    client = MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("faults").experiment_id
    keys = [name, *(f"{name}-{trial}" for trial in TRIALS)]
    runs = {key: list(client.search_runs([place], f"tags.`fedray.key` = '{key}'")) for key in keys}
    if any(len(found) != 1 for found in runs.values()):
        return f"runs by key: { ({key: len(found) for key, found in runs.items()}) }"
    parent = runs[name][0]
    wrong = check_points(client, parent, {"best_objective": {0: 0.5}, "trials_finished": {0: 2.0}})
    for trial in TRIALS:
        child = runs[f"{name}-{trial}"][0]
        wrong += check_points(client, child, expected(read(home / trial)))
        if child.data.tags.get("mlflow.parentRunId") != parent.info.run_id:
            wrong.append(f"{trial} has another parent")
        text = Path(client.download_artifacts(child.info.run_id, "result.json")).read_bytes()
        if not text == before[trial] == (home / trial / "result.json").read_bytes():
            wrong.append(f"{trial}: another result.json")
    wrong += [
        f"{key}: {r.info.status}" for key, (r,) in runs.items() if r.info.status != "FINISHED"
    ]
    return "; ".join(wrong[:5])


def expected(done: Run) -> dict[str, dict[int, float]]:
    """Some of a trial's metrics by step: the first, the last, what is written last, and the end."""
    names = list(done.rounds[0].metrics)
    found = {
        grouped(name): {each.round: each.metrics[name] for each in done.rounds}
        for name in (names[0], names[-1])
    }
    found["time/seconds"] = {each.round: each.seconds for each in done.rounds}
    found["time/total_seconds"] = {each.round: 1.0 + each.round for each in done.rounds}
    return found | {"objective": {4: 0.5}}


def check_points(client: Any, run: Any, wanted: dict[str, dict[int, float]]) -> list[str]:
    """What is missing, twice or different."""
    wrong = []
    for name, by_step in wanted.items():
        points = client.get_metric_history(run.info.run_id, name)
        steps = Counter(point.step for point in points)
        if {point.step: point.value for point in points} != by_step or max(steps.values()) > 1:
            wrong.append(f"{run.info.run_name} {name}: {sorted(steps.items())}")
    return wrong
