"""Many trials at once on the team's server of mlflow/team.sh, through faults; and on sqlite.

    python -m benchmarks.team --trials 16 --rounds 30 --metrics 200

The database is restarted in the middle, a password changed, the object store refuses for a while.
What is missing then is uploaded from the runs' folders, and nothing may be lost or twice. Needs
PostgreSQL and the packages of `fedray[team]`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.proxy import Proxy
from fedray.config import Experiment
from fedray.files import write_json
from fedray.records import Costs, Round, Run, RunFolder, RunInfo, Traffic
from fedray.tracking import MlflowTracker, describe_run, run_key, upload

SCRIPT = Path(__file__).resolve().parents[1] / "mlflow" / "team.sh"
PACKAGES = ("psycopg2", "boto3", "moto", "flask_wtf", "flask_cors")
USER = "ada"
PASSWORDS = ("the first password", "another password")


def why_not() -> str:
    """What keeps team.sh from starting here; "" when nothing does."""
    if shutil.which("pg_ctl") is None and not list(
        Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")
    ):
        return "PostgreSQL is not installed (apt-get install -y postgresql)"
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} are not installed (pip install 'fedray[team]')"
    if os.geteuid() == 0 and "postgres" not in {user.pw_name for user in pwd.getpwall()}:
        return "as root, PostgreSQL needs the user postgres"
    return ""


# --- the server ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Team:
    """A running team.sh.

    Attributes:
        data: its folder.
        environment: what it was started with.
        store: the proxy between MLflow and the object store.
        refusing: put a fault's name here and the object store answers with it.
    """

    data: Path
    environment: dict[str, str]
    store: Proxy
    refusing: list[str]

    @property
    def uri(self) -> str:
        """Where MLflow listens."""
        return f"http://127.0.0.1:{self.environment['MLFLOW_PORT']}"

    @property
    def database(self) -> str:
        """The database, for SQLAlchemy."""
        password = self.secret("POSTGRES_PASSWORD")
        port = self.environment["DATABASE_PORT"]
        return f"postgresql+psycopg2://mlflow:{password}@127.0.0.1:{port}/mlflow"

    def secret(self, name: str) -> str:
        """One line of secrets.env."""
        lines = (self.data / "secrets.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[name]

    def call(self, *words: str) -> None:
        """`team.sh WORDS`, beside the one that serves."""
        subprocess.run(["bash", SCRIPT, *words], env=self.environment, check=True)

    def as_user(self, name: str, password: str) -> None:
        """Log in, for all MLflow clients of this process."""
        os.environ.update(MLFLOW_TRACKING_USERNAME=name, MLFLOW_TRACKING_PASSWORD=password)

    def as_admin(self) -> Any:
        """Log in as admin; the client that makes users and changes passwords."""
        from mlflow.server import get_app_client

        self.as_user("admin", self.secret("MLFLOW_AUTH_ADMIN_PASSWORD"))
        return get_app_client("basic-auth", tracking_uri=self.uri)


@contextlib.contextmanager
def team(workers: int = 2) -> Iterator[Team]:
    """Start team.sh in a temporary folder, on free ports of the loopback; stop it at the end."""
    data = Path(tempfile.mkdtemp(prefix="fedray-team-"))
    data.chmod(0o711)  # PostgreSQL runs as another user when we are root
    ports = free_ports(3)
    refusing: list[str] = []
    with Proxy(ports[2], lambda *_: refusing[0] if refusing else None) as store:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "AWS_"))}
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MLFLOW_DATA": str(data),
            "MLFLOW_WORKERS": str(workers),
            "MLFLOW_PORT": str(ports[0]),
            "DATABASE_PORT": str(ports[1]),
            "STORAGE_PORT": str(ports[2]),
            "MLFLOW_S3_ENDPOINT_URL": store.uri,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        with (data / "team.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", SCRIPT], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            await_ready(process, data / "team.log")
            yield Team(data, environment, store, refusing)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(180)
            shutil.rmtree(data, ignore_errors=True)


def await_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once the script says so."""
    while "\nready" not in log.read_text():
        if process.poll() is not None:
            logs = [log.read_text(), *(p.read_text()[-2000:] for p in log.parent.glob("*.log"))]
            raise RuntimeError("team.sh did not start:\n" + "\n".join(logs))
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


# --- trials --------------------------------------------------------------------------------------


def make_runs(home: Path, trials: int, rounds: int, metrics: int) -> list[Path]:
    """Folders of finished runs."""
    folders = []
    for seed in range(trials):
        experiment = Experiment(name="digits", rounds=rounds - 1, seed=seed)
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
        named = metrics - NAMED
        done = [
            Round(r, 1.0, {f"m{i}": seed + r + i / named for i in range(named)}, up=Traffic())
            for r in range(rounds)
        ]
        folder = home / f"trial_{seed}"
        folder.mkdir(parents=True)
        write_json(folder / "result.json", Run(info, done, Costs(float(rounds))).to_json())
        folders.append(folder)
    return folders


NAMED = 9
"""Metrics that each round has besides its own: traffic, totals, seconds, faults."""


class Drivers:
    """One tracker per run, as many drivers at once have."""

    def __init__(self, folders: Sequence[Path], uri: str, experiment: str) -> None:
        self.runs = {folder: RunFolder(folder).read() for folder in folders}
        self.trackers = {
            folder: MlflowTracker(uri, experiment, folder=folder, retry_seconds=0.5)
            for folder in folders
        }
        self.keys = {f: run_key(f, run.info.identity) for f, run in self.runs.items()}
        for folder, tracker in self.trackers.items():
            params, tags = describe_run(self.runs[folder].info)
            tracker.start(self.keys[folder], folder.name, params=params, tags=tags)

    def log(self, rounds: range) -> None:
        """Pass these rounds of every run; returns at once."""
        for r in rounds:
            for folder, tracker in self.trackers.items():
                tracker.round(self.keys[folder], self.runs[folder].rounds[r])

    def await_logged(self, rounds: int) -> None:
        """Return once the server has that many rounds of every run."""
        while any(tracker.rounds_logged < rounds for tracker in self.trackers.values()):
            time.sleep(0.02)

    def finish(self, wait_seconds: float = 600.0) -> None:
        """End all runs."""
        for folder, tracker in self.trackers.items():
            tracker.finish(self.keys[folder], "FINISHED", [folder / "result.json"])
        for tracker in self.trackers.values():
            tracker.close(wait_seconds)


def seconds_of(folders: Sequence[Path], uri: str, experiment: str, rounds: int) -> float:
    """How long it takes until all runs are there with all rounds and files."""
    began = time.monotonic()
    drivers = Drivers(folders, uri, experiment)
    drivers.log(range(rounds))
    drivers.finish()
    failures = {tracker.failure for tracker in drivers.trackers.values()}
    assert failures == {None}, failures
    return time.monotonic() - began


def log_through_faults(server: Team, folders: Sequence[Path], rounds: int) -> list[str]:
    """Log all runs while the server's parts fail one after the other; what the trackers say."""
    third = rounds // 3
    drivers = Drivers(folders, server.uri, "through faults")
    drivers.log(range(third))
    drivers.await_logged(1)
    server.call("database", "restart", "-m", "fast")
    drivers.log(range(third, 2 * third))
    drivers.await_logged(2 * third)  # by themselves
    server.as_admin().update_user_password(USER, PASSWORDS[1])
    server.as_user(USER, PASSWORDS[0])
    drivers.log(range(2 * third, rounds))
    server.refusing[:] = ["500"]
    drivers.finish(wait_seconds=2.0)
    return [str(tracker.failure) for tracker in drivers.trackers.values()]


def upload_all(server: Team, folders: Sequence[Path]) -> int:
    """Upload with the new password: first with a store that refuses, then with all parts there."""
    server.as_user(USER, PASSWORDS[1])
    with contextlib.suppress(Exception):
        upload(folders, server.uri, "through faults")
    server.refusing.clear()
    found = upload(folders, server.uri, "through faults")
    assert all(not each.rounds and not each.files for each in upload(folders, server.uri))
    return sum(each.rounds for each in found)


def look(database: str, experiment: str, folders: Sequence[Path], metrics: int) -> list[str]:
    """What the database has too little or too much of."""
    from sqlalchemy import create_engine, text

    points = (
        "SELECT t.value, count(*), count(DISTINCT m.key || ' ' || m.step) FROM metrics m "
        "JOIN runs r ON r.run_uuid = m.run_uuid JOIN experiments e USING (experiment_id) "
        "JOIN tags t ON t.run_uuid = r.run_uuid AND t.key = 'fedray.key' "
        "WHERE e.name = :name AND r.lifecycle_stage = 'active' AND r.status = 'FINISHED' "
        "GROUP BY t.value, r.run_uuid"
    )
    engine = create_engine(database)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(points), {"name": experiment})]
    engine.dispose()
    runs = [RunFolder(folder).read() for folder in folders]
    wanted = [
        (run_key(folder, run.info.identity), *[len(run.rounds) * metrics] * 2)
        for folder, run in zip(folders, runs, strict=True)
    ]
    return [f"{each}" for each in sorted({*found} ^ {*wanted})] + (
        [] if len(found) == len(wanted) else [f"{len(found)} runs"]
    )


def artifacts_differ(server: Team, experiment: str, folders: Sequence[Path]) -> list[str]:
    """Runs whose result.json in the object store is not the one of their folder."""
    from mlflow import MlflowClient

    client = MlflowClient(server.uri)
    place = client.get_experiment_by_name(experiment).experiment_id
    wrong = []
    for folder in folders:
        key = run_key(folder, RunFolder(folder).read().info.identity)
        (run,) = client.search_runs([place], f"tags.`fedray.key` = '{key}'")
        kept = Path(client.download_artifacts(run.info.run_id, "result.json")).read_bytes()
        if kept != (folder / "result.json").read_bytes():
            wrong.append(folder.name)
    return wrong


# --- the command ---------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Print the times and what the faults left; 1 when something is lost or twice."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.team")
    cli.add_argument("--trials", type=int, default=16)
    cli.add_argument("--rounds", type=int, default=30)
    cli.add_argument("--metrics", type=int, default=200)
    cli.add_argument("--workers", type=int, default=4)
    args = cli.parse_args(argv)
    if why := why_not():
        print(why)
        return 2
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")  # times are what is asked for
    with tempfile.TemporaryDirectory() as temporary, team(args.workers) as server:
        home = Path(temporary)
        server.as_admin().create_user(USER, PASSWORDS[0])
        server.as_user(USER, PASSWORDS[0])
        sqlite = f"sqlite:///{home}/mlflow.db"
        for name, uri in (("sqlite", sqlite), ("team", server.uri)):
            folders = make_runs(home / name, args.trials, args.rounds, args.metrics)
            took = seconds_of(folders, uri, "undisturbed", args.rounds)
            database = sqlite if name == "sqlite" else server.database
            wrong = look(database, "undisturbed", folders, args.metrics)
            per = 1000 * took / (args.trials * args.rounds)
            print(f"{name}: {took:.1f} s, {per:.1f} ms a round; {wrong or 'all there, once'}")
        folders = make_runs(home / "faults", args.trials, args.rounds, args.metrics)
        said = log_through_faults(server, folders, args.rounds)
        print(f"through faults: {sorted(set(said))}")
        added = upload_all(server, folders)
        wrong += look(server.database, "through faults", folders, args.metrics)
        wrong += artifacts_differ(server, "through faults", folders)
        print(f"uploaded {added} rounds; {wrong or 'all there, once'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
