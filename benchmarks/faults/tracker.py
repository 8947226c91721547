"""A tracking server that hangs, fails, forgets to answer or dies, and drivers killed while logging.

A sweep of two trials logs to a real `mlflow server` through a proxy that misbehaves at random
requests. In some episodes the logging process is killed at a random moment and started again.
Afterwards the sweep is uploaded. Then the server must hold every number once and nothing else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import free_port
from benchmarks.faults.harness import Tally
from benchmarks.faults.proxy import FAULTS, Proxy
from fedray.config import Experiment
from fedray.storage.environment import Environment
from fedray.storage.run import Costs, Round, Run, RunInfo, Traffic
from fedray.storage.run_folder import RunFolder, RunWriter
from fedray.tracking.describe import TrackedRun, grouped
from fedray.tracking.study import TrackedMember, TrackedStudy
from fedray.tracking.sync import sync

TRIALS = ("trial_0", "trial_1")
IMPATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "3", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
PATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}


def run(count: int, seed: int, folder: Path) -> Tally:
    """Inject at least `count` faults, several per episode; check the server after each episode."""
    tally = Tally()
    with server(folder) as port:
        for episode in range(10 * count):
            if tally.count >= count:
                break
            draw, name = random.Random(f"{seed} {episode}"), f"e{episode}"
            home, runs = folder / str(episode), make_runs(draw, wide=episode % 4 == 3)
            faults = log_badly(home, runs, port, draw, name)
            wrong = look(home, runs, f"http://127.0.0.1:{port}", name)
            tally.add(faults, "all there, once", wrong and f"episode {episode}: {wrong}")
    return tally


@contextlib.contextmanager
def server(folder: Path) -> Iterator[int]:
    """Run `mlflow server` on sqlite; yield its port on the loopback once it answers."""
    port, log = free_port(), folder / "server.log"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "kept")]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=folder, env=env, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 180
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"mlflow server did not start:\n{log.read_text()}")
            time.sleep(0.2)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        return True
    return False


# --- a sweep, logged through faults ---------------------------------------------------------------


def make_runs(draw: random.Random, *, wide: bool = False) -> dict[str, Run]:
    """Return two runs by trial; with `wide` they have more metrics than a request may hold."""
    runs = {}
    for seed, trial in enumerate(TRIALS):
        experiment = Experiment(name="digits", rounds=4, seed=seed)
        info = RunInfo(
            experiment.tree(), experiment.identity("data"), Environment(), started=datetime.now(UTC)
        )
        metrics = [f"m{i}" for i in range(1200 if wide else 20)]
        rounds = [
            Round(r, 1.0, {name: draw.random() for name in metrics}, up=Traffic({"w": r}))
            for r in range(5)
        ]
        runs[trial] = Run(info, rounds, Costs(wall_seconds=5.0))
    return runs


def write_run(folder: RunFolder, run: Run) -> None:
    """Write the files of a run."""
    folder.path.mkdir(parents=True, exist_ok=True)
    hashes = {"sha256": "f" * 64, "images_sha256": "d" * 64}
    writer = RunWriter(folder, run.info, hashes)
    for done in run.rounds:
        writer.append(done, run.costs)
    if run.is_finished:
        writer.end()
    writer.close()


def write(home: Path, runs: Mapping[str, Run], name: str, count: int) -> None:
    """Write a sweep after so many rounds of its runs; after 6 it has ended."""
    has_ended = count == 6
    for trial, run in runs.items():
        folder, now = RunFolder(home / trial), replace(run, rounds=run.rounds[:count])
        if not (folder.has_run and folder.read().done == now.done):
            write_run(folder, now)
    best = {"best_objective": 0.5, "trials_finished": 2.0} if has_ended else {}
    parent = TrackedRun(
        name, name, "faults", {"search": "grid"}, {}, "FINISHED" if has_ended else "RUNNING", 1,
        metrics=best,
    )  # fmt: skip
    objective = {"objective": 0.5} if has_ended else {}
    members = {trial: TrackedMember(f"{name} {trial}", metrics=objective) for trial in runs}
    TrackedStudy(parent, members).write(home)


def log_badly(
    home: Path, runs: Mapping[str, Run], port: int, draw: random.Random, name: str
) -> list[str]:
    """Log a sweep through the proxy, and perhaps kill the logging process; return the faults."""
    rate, kills = draw.choice([0.05, 0.2, 0.5]), draw.choice([0, 1, 1, 2])
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload(["fedray.tracking.sync"])

    def choose(method: str, path: str) -> str | None:
        # Creating a run is dangerous: a repeated request may make a second one.
        is_fault = draw.random() < (0.5 if path.endswith("runs/create") else rate)
        return draw.choice(FAULTS) if is_fault else None

    with Proxy(port, choose, hang_seconds=4.0) as proxy:
        for attempt in range(kills + 1):
            driver = spawn.Process(target=drive, args=(proxy.uri, home, runs, name))
            driver.start()
            driver.join(draw.uniform(0.0, 5.0) if attempt < kills else 120)  # imports take 2 s
            driver.kill()
            driver.join()
        proxy.settle()
    return [fault for fault, _, _ in proxy.faults] + ["driver killed"] * kills


def drive(uri: str, home: Path, runs: Mapping[str, Run], name: str) -> None:
    """Track a sweep as its child does, while its rounds come in."""
    os.environ.update(IMPATIENT)
    sent: dict[str, object] = {}
    for count in (1, 2, 3, 4, 5, 6, 6, 6):  # the last state is tried three times
        write(home, runs, name, count)
        with contextlib.suppress(Exception):
            sync(home, uri, going=count < 6, sent=sent)
        time.sleep(0.03)


def look(home: Path, runs: Mapping[str, Run], uri: str, name: str) -> str:
    """Upload what is missing; return what is wrong with the server's content, "" for nothing."""
    from mlflow import MlflowClient

    os.environ.update(PATIENT)
    write(home, runs, name, 6)
    for _ in range(2):
        sync(home, uri)
    client = MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("faults").experiment_id
    [parent] = full_runs(client, place, name)
    wrong = check_points(client, parent, {"best_objective": {0: 0.5}, "trials_finished": {0: 2.0}})
    for trial, run in runs.items():
        found = full_runs(client, place, f"{name} {trial}")
        if len(found) != 1:
            return f"{len(found)} runs of {trial}"
        wrong += check_points(client, found[0], expected(run))
        if found[0].data.tags.get("mlflow.parentRunId") != parent.info.run_id:
            wrong.append(f"{trial} has another parent")
        text = Path(client.download_artifacts(found[0].info.run_id, "run.json")).read_bytes()
        if text != (home / trial / "run.json").read_bytes():
            wrong.append(f"{trial}: another run.json")
        if found[0].info.status != "FINISHED":
            wrong.append(f"{trial}: {found[0].info.status}")
    return "; ".join(wrong[:5])


def full_runs(client: Any, place: str, name: str) -> list[Any]:
    """Return the runs of a name that hold numbers; a repeated request may leave an empty one."""
    runs = client.search_runs([place], f"attributes.run_name = '{name}'")
    return [run for run in runs if run.data.metrics]


def expected(run: Run) -> dict[str, dict[int, float]]:
    """Return metrics by step that MLflow must hold: the first, the last, times, and the end."""
    names = list(run.rounds[0].metrics)
    metrics = {
        grouped(name): {done.round: done.metrics[name] for done in run.rounds}
        for name in (names[0], names[-1])
    }
    metrics["time/seconds"] = {done.round: done.seconds for done in run.rounds}
    metrics["time/total_seconds"] = {done.round: 1.0 + done.round for done in run.rounds}
    return metrics | {"objective": {4: 0.5}}


def check_points(client: Any, run: Any, wanted: dict[str, dict[int, float]]) -> list[str]:
    """Name the metrics whose points are missing, doubled or different."""
    wrong = []
    for name, by_step in wanted.items():
        points = client.get_metric_history(run.info.run_id, name)
        steps = Counter(point.step for point in points)
        if {point.step: point.value for point in points} != by_step or max(steps.values()) > 1:
            wrong.append(f"{run.info.run_name} {name}: {sorted(steps.items())}")
    return wrong
