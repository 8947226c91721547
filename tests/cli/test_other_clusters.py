"""Local runs beside a Ray of somebody else, and beside what an unclean end of one left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CPUS = 7
"""Of the other cluster: no machine of ours has so many."""

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Iterator[dict[str, str]]:
    """Of a user without RAY_ADDRESS, with a temporary folder of Ray's own."""
    folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))  # sockets need short paths
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "tiny.yaml").write_text(
        yaml.safe_dump(
            {
                "answers": "does it start?",
                "space": {"lr": {"grid": [0.1]}},
                "scales": {
                    "laptop": {
                        "experiment": "fedavg_digits",
                        "select": SMALL["report.select"],
                        "set": {key: SMALL[key] for key in SMALL.keys() - {"report.select"}},
                    }
                },
            }
        )
    )
    given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    yield {
        **given,
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FEDRAY_RESULTS": str(tmp_path / "results"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    shutil.rmtree(folder, ignore_errors=True)


SMALL = {
    "rounds": 1,
    "workers": 1,
    "cpus": 1,
    "data.clients": 3,
    "data.samples": 300,
    "report.select": "test",
}
RUN = ["-m", "fedray.run", "fedavg_digits", *(f"{k}={v}" for k, v in SMALL.items()), "--no-track"]
SWEEP = ["-m", "fedray.sweep", "tiny", "--no-track"]


def command(words: list[str], environment: dict[str, str], here: Path, given: str = "") -> str:
    """Run a command; what it said to stdout."""
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=here,
        input=given,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def benchmark(here: Path) -> tuple[list[str], str]:
    """One process of benchmarks/overhead.py that works on Ray, and what it is told."""
    words = [str(ROOT / "benchmarks" / "overhead.py"), "--serve", "W3", "ray", str(here)]
    return words, f"round\nend {here / 'final.pt'}\n"


def test_an_address_that_an_unclean_end_left_behind(environment, tmp_path):
    port = free_port()
    (Path(environment["RAY_TMPDIR"]) / "ray").mkdir()
    (Path(environment["RAY_TMPDIR"]) / "ray" / "ray_current_cluster").write_text(
        f"127.0.0.1:{port}"
    )
    for words in (RUN, SWEEP):
        said = command(words, environment, tmp_path)
        assert "answers" not in said
        assert "results: " in said
    words, given = benchmark(tmp_path)
    assert '"seconds"' in command(words, environment, tmp_path, given)


def test_a_cluster_of_somebody_else_is_mentioned_and_left_alone(environment, tmp_path):
    other = start(environment, tmp_path / "other.log")
    try:
        for words in (RUN, SWEEP):
            said = command(words, environment, tmp_path)
            assert said.count("a Ray cluster runs at 127.0.0.3:") == 1
            assert "set RAY_ADDRESS=auto to use it" in said
            assert f"has {CPUS} CPU" not in said
        words, given = benchmark(tmp_path)
        assert '"seconds"' in command(words, environment, tmp_path, given)
        joined = command(RUN, {**environment, "RAY_ADDRESS": "auto"}, tmp_path)
        assert f"the cluster has {CPUS} CPU" in joined
        assert other.poll() is None
    finally:
        os.killpg(other.pid, signal.SIGKILL)  # as unclean as it gets: its address stays
        other.wait()
    assert "answers" not in command(RUN, environment, tmp_path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def start(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """`ray start` in a group of processes of its own, with ports of its own."""
    words = [
        *("start", "--head", "--block", "--port=0", f"--num-cpus={CPUS}"),
        *("--node-ip-address=127.0.0.3", "--include-dashboard=false"),
        f"--ray-client-server-port={free_port()}",
        "--disable-usage-stats",
    ]
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *words],
            env={**environment, "RAY_enable_metrics_collection": "0"},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    address = Path(environment["RAY_TMPDIR"]) / "ray" / "ray_current_cluster"
    until = time.monotonic() + 180
    while "Ray runtime started" not in log.read_text() or not address.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    return process
