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
TRIALS = 6
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
PATIENCE = 900
"""Seconds: the machine may be busy."""
SIGNAL = "--signal=B:USR1@120"
"""So that it comes as soon as `limit_soon` has changed the limit and Slurm has looked."""
ENOUGH = 100
"""Seconds of all trials together; Slurm looks at time limits every 30 s."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.ray,
    pytest.mark.timeout(2 * PATIENCE),
    pytest.mark.skipif(local_slurm.why_not() is not None, reason=str(local_slurm.why_not())),
]


class Job:
    """A submitted sweep.

    Attributes:
        words: what the script was given.
        number: by which Slurm knows it.
        results: its FEDRAY_RESULTS.
    """

    def __init__(self, slurm: Slurm, name: str, words: tuple[str, ...], *options: str) -> None:
        self.words = words
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
        (found,) = self.results.glob("*/*/plan.json")
        return found.parent

    def seconds(self) -> dict[str, float] | None:
        """Return the seconds of the runs that are over; None before the sweep has begun."""
        found = list(self.results.glob("*/*/plan.json"))
        return json.loads(found[0].read_text())["seconds"] if found else None

    def finished(self) -> dict[str, float]:
        """Return the runs that are over, and when they last wrote something."""
        return {run: last_written(self.results / "store" / run) for run in self.seconds() or ()}

    def wait_for_first_trial(self) -> None:
        wait_until(lambda: self.finished() or self.is_over(), PATIENCE, "a trial")
        assert not self.is_over(), self.log

    def wait_for_restart(self) -> None:
        """Wait until it runs again; its sweep too, unless the first start has come to its end."""
        mark = "start 2: the "
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
    """`submit(("NAME", "rounds=5"), "--time=10")` gives a job that bears the test's name."""

    def submit(words: tuple[str, ...], *options: str) -> Job:
        return Job(slurm, request.node.name.removeprefix("test_"), words, *options)

    return submit


@pytest.fixture(scope="module")
def undisturbed(slurm) -> Job:
    """A sweep that takes long enough to be disturbed, in a job that nothing happens to."""
    for rounds in (80, 320):
        words = ("fedprox_mu", f"rounds={rounds}", "local_epochs=2", "--no-track")
        job = Job(slurm, f"undisturbed_{rounds}", words)
        assert job.wait() == "COMPLETED", job.log
        if sum((job.seconds() or {}).values()) > ENOUGH:
            break
    return job


def test_a_sweep_runs_on_two_nodes_with_a_token(slurm, undisturbed):
    assert len(undisturbed.objectives()) == TRIALS
    assert len(set(undisturbed.objectives().values())) > 1
    assert "the cluster has 2 CPU, 0 GPU on 2 node(s); 2 run(s) at a time" in undisturbed.log
    token = slurm.folder / "home" / ".ray" / "auth_token"
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_lost_node_does_not_end_a_job_that_may_shrink(slurm, submit, undisturbed):
    job = submit(undisturbed.words, "--no-kill")
    job.wait_for_first_trial()
    slurm.command("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    assert job.wait() == "COMPLETED", job.log
    assert (job.told("Restarts"), job.told("NodeList")) == ("0", "n1")
    assert job.objectives() == undisturbed.objectives()


@pytest.mark.parametrize("node", local_slurm.NODES)
def test_a_job_that_lost_a_node_starts_again_and_goes_on(slurm, submit, undisturbed, node):
    job = submit(undisturbed.words)
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
    job = submit(undisturbed.words, "--time=60", SIGNAL)
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
    """Change a job's limit, so that one to two minutes are left."""
    hours, minutes, _ = map(int, job.told("RunTime").split(":"))
    limit = 60 * hours + minutes + 2
    slurm.command("scontrol", "update", f"jobid={job.number}", f"timelimit={limit}")


def test_a_job_is_not_started_again_for_ever(slurm, submit, undisturbed):
    once = "--export=ALL,FEDRAY_MOST_RESTARTS=0"
    job = submit(undisturbed.words, "--time=60", SIGNAL, once)
    wait_until(lambda: job.seconds() is not None, PATIENCE, "the sweep's begin")
    limit_soon(slurm, job)
    assert job.wait() == "FAILED"
    assert (job.told("Restarts"), job.told("ExitCode")) == ("0", "1:0")
    assert "Submit the same line again" in job.log


def test_a_mistake_of_the_users_ends_the_job_at_once(submit):
    job = submit(("no_such_sweep", "--no-track"))
    assert job.wait() == "FAILED"
    assert (job.told("Restarts"), job.told("ExitCode")) == ("0", "2:0")
    assert "error: there is no sweep 'no_such_sweep'" in job.log
    assert "the head" not in job.log
