"""clusters/slurm/sweep.sbatch under a real Slurm: a controller and two nodes on this machine."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm as local_slurm
from slurm import ROOT, Slurm, wait_until

SCRIPT = ROOT / "clusters" / "slurm" / "sweep.sbatch"
SWEEP = ("fedprox_mu", "rounds=20", "local_epochs=2", "--no-track")
TRIALS = 6
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
PATIENCE = 900
"""Seconds: the machine may be busy."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.ray,
    pytest.mark.timeout(2 * PATIENCE),
    pytest.mark.skipif(local_slurm.why_not() is not None, reason=str(local_slurm.why_not())),
]


class Job:
    """A submitted sweep.

    Attributes:
        number: by which Slurm knows it.
        results: its FEDRAY_RESULTS.
    """

    def __init__(self, slurm: Slurm, name: str, *options: str, words: tuple[str, ...]) -> None:
        self._slurm = slurm
        self.results = slurm.folder / "results" / name
        self._log = slurm.folder / f"{name}.log"
        small = ("--cpus-per-task=1", "--gpus-per-node=0", "--mem=1500M", f"--output={self._log}")
        command = ("sbatch", "--parsable", *small, *options, str(SCRIPT), *words)
        self.number = slurm.command(*command, FEDRAY_RESULTS=str(self.results)).strip()

    def told(self, key: str) -> str:
        """What Slurm says of the job, by its name for it."""
        shown = self._slurm.command("scontrol", "-o", "show", "job", self.number)
        found = re.search(rf"\b{key}=(\S*)", shown)
        assert found, shown
        return found[1]

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def home(self) -> Path:
        """The one folder of its sweep."""
        (found,) = self.results.glob("*/*/sweep.json")
        return found.parent

    def trials(self) -> list[dict[str, object]]:
        """The trials so far, none before the sweep has begun."""
        found = list(self.results.glob("*/*/sweep.json"))
        return json.loads(found[0].read_text())["trials"] if found else []

    def finished(self) -> dict[str, float]:
        """The trials that are finished, and when they last wrote something."""
        return {
            str(trial["folder"]): last_written(self.home / str(trial["folder"]))
            for trial in self.trials()
            if trial["status"] == "finished"
        }

    def wait_for_first_trial(self) -> None:
        wait_until(lambda: self.finished() or self.is_over(), PATIENCE, "a trial")
        assert not self.is_over(), self.log

    def wait_for_restart(self) -> None:
        """Wait until it runs again, its sweep too."""
        mark = "start 2: the head"
        wait_until(lambda: mark in self.log or self.is_over(), PATIENCE, "another start")
        assert mark in self.log, self.log

    def is_over(self) -> bool:
        return self.told("JobState") in OVER

    def wait(self) -> str:
        """How it ended."""
        wait_until(self.is_over, PATIENCE, "the job's end")
        return self.told("JobState")

    def objectives(self) -> dict[str, str]:
        """Every trial's objective, to the last digit."""
        with (self.home / "trials.csv").open() as file:
            return {row["algorithm.mu"]: row["objective"] for row in csv.DictReader(file)}


def last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.rglob("*") if path.name != ".lock")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with local_slurm.running_slurm() as running:
        yield running


@pytest.fixture
def submit(slurm, request) -> Callable[..., Job]:
    """`submit("--time=10", words=(...))` gives a job that bears the test's name."""

    def submit(*options: str, words: tuple[str, ...] = SWEEP) -> Job:
        return Job(slurm, request.node.name.removeprefix("test_"), *options, words=words)

    return submit


@pytest.fixture(scope="module")
def undisturbed(slurm) -> Job:
    """The same sweep in a job that nothing happens to."""
    job = Job(slurm, "undisturbed", words=SWEEP)
    assert job.wait() == "COMPLETED", job.log
    return job


def test_a_sweep_runs_on_two_nodes_with_a_token(slurm, undisturbed):
    assert len(undisturbed.objectives()) == TRIALS
    assert len(set(undisturbed.objectives().values())) > 1
    assert "the cluster has 2 CPU, 0 GPU on 2 node(s); 2 run(s) at a time" in undisturbed.log
    token = slurm.folder / "home" / ".ray" / "auth_token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert not list(undisturbed.results.glob(".slurm-*"))


def test_a_lost_node_does_not_end_a_job_that_may_shrink(slurm, submit, undisturbed):
    job = submit("--no-kill")
    job.wait_for_first_trial()
    slurm.command("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    assert job.wait() == "COMPLETED", job.log
    assert (job.told("Restarts"), job.told("NodeList")) == ("0", "n1")
    assert job.objectives() == undisturbed.objectives()


@pytest.mark.parametrize("node", local_slurm.NODES)
def test_a_job_that_lost_a_node_starts_again_and_goes_on(slurm, submit, undisturbed, node):
    job = submit()
    job.wait_for_first_trial()
    slurm.lose(node)
    wait_until(lambda: job.told("JobState") != "RUNNING", 120, "Slurm sees that the node is lost")
    before = job.finished()
    slurm.start_node(node)
    job.wait_for_restart()
    assert job.wait() == "COMPLETED", job.log
    assert job.objectives() == undisturbed.objectives()
    assert before.items() <= job.finished().items()


def test_a_job_near_its_time_limit_starts_again_and_goes_on(slurm, submit, undisturbed):
    job = submit("--time=60")
    job.wait_for_first_trial()
    limit_soon(slurm, job)
    wait_until(lambda: "the time limit is near" in job.log or job.is_over(), 120, "the signal")
    if job.told("JobState") == "COMPLETED":
        pytest.skip("the sweep was over before Slurm looked at the limit, which it does every 30 s")
    wait_until(lambda: job.told("Restarts") == "1", 120, "back in the queue")
    before = job.finished()
    slurm.command("scontrol", "update", f"jobid={job.number}", "timelimit=60")
    job.wait_for_restart()
    assert job.wait() == "COMPLETED", job.log
    assert job.told("Restarts") == "1"
    assert 0 < len(before) < TRIALS
    assert before.items() <= job.finished().items()
    assert job.objectives() == undisturbed.objectives()


def limit_soon(slurm: Slurm, job: Job) -> None:
    """Change a job's limit, so that less than a minute is left."""
    hours, minutes, seconds = map(int, job.told("RunTime").split(":"))
    passed = 60 * hours + minutes + (seconds > 0)
    slurm.command("scontrol", "update", f"jobid={job.number}", f"timelimit={passed}")


def test_a_job_is_not_started_again_for_ever(slurm, submit):
    job = submit("--time=60", "--export=ALL,FEDRAY_MOST_RESTARTS=0")
    wait_until(job.trials, PATIENCE, "the sweep's begin")
    limit_soon(slurm, job)
    assert job.wait() == "FAILED"
    assert (job.told("Restarts"), job.told("ExitCode")) == ("0", "1:0")
    assert f"--resume --out {job.home}" in job.log


def test_a_mistake_of_the_users_ends_the_job_at_once(submit):
    job = submit(words=("no_such_sweep", "--no-track"))
    assert job.wait() == "FAILED"
    assert (job.told("Restarts"), job.told("ExitCode")) == ("0", "2:0")
    assert "error: no_such_sweep" in job.log
    assert "the head" not in job.log
