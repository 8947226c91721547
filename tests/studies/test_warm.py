"""Nothing of a trial is left in the next: warm trials give what cold ones give, in every order."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from rounds import rounds_in, serial

from fedray.config import Experiment, dump_yaml
from fedray.models.clip import load_clip
from fedray.runtime.assembly import Assembly, forget_shared
from fedray.runtime.resolve import resolve
from fedray.runtime.serial import SerialExecutor
from fedray.storage.run import MEASURED_SECONDS
from fedray.studies.study import Study
from fedray.studies.trainable import FederatedRun
from fedray.studies.trials import SweepOutcome

COMMON = ("rounds=2", "local_epochs=1", "data.samples=250", "data.clients=4")
LAYER = "algorithm={name: fedglcl_l, blocks: 0}"
BERT = ("text.encoder=bert", "model.feature_dim=16", "text.style=plain")


@pytest.fixture
def trials(tiny_bert) -> dict[str, list[str]]:
    """Trials of unlike methods and models, as words of the command line."""
    encoder = [f"text.encoder.path={tiny_bert}", *BERT]
    texts = ["data.partition={name: dirichlet, alpha: 1.0}", *encoder]
    return {
        "prompts of texts": ["fedtsp_digits", *COMMON, *texts],
        "a text tower that is trained": ["fedglcl_digits", LAYER, *COMMON, *texts],
        "a CLIP": ["promptfl_clip", *COMMON],
        "another seed": ["fedproto_digits", *COMMON, "seed=3"],
    }


def numbers(out: Path) -> Any:
    """What a run wrote, but for times."""
    rounds = rounds_in(out)
    return [{k: v for k, v in each.items() if k not in MEASURED_SECONDS} for each in rounds]


def run(words: list[str], out: Path) -> Any:
    """Run in this process as it is; what came out."""
    experiment = resolve(words[0], words[1:])
    list(serial(experiment, out).rounds())
    return numbers(out)


def cold() -> None:
    """Forget what this process shares between runs."""
    forget_shared()
    load_clip.cache_clear()


def test_trials_in_other_orders_in_one_process_are_what_they_are_alone(trials, tmp_path):
    alone = {}
    for number, (name, words) in enumerate(trials.items()):
        cold()
        alone[name] = run(words, tmp_path / f"alone{number}")
    cold()
    for number, name in enumerate([*reversed(trials), next(iter(trials))]):
        assert run(trials[name], tmp_path / f"warm{number}") == alone[name]


@pytest.mark.long
def test_trials_in_every_order_are_what_processes_of_their_own_give(trials, tmp_path):
    alone = {}
    for number, (name, words) in enumerate(trials.items()):
        out = tmp_path / f"alone{number}"
        command = [sys.executable, "-m", "fedray.run", *words, "--executor=serial", "--no-track"]
        subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        alone[name] = numbers(out)
    cold()
    for turn, order in enumerate(permutations(trials)):
        for position, name in enumerate(order):
            assert run(trials[name], tmp_path / f"warm{turn}_{position}") == alone[name], order


@pytest.mark.long
@pytest.mark.ray
def test_a_sweep_through_warm_actors_is_what_single_runs_are(trials, tmp_path, monkeypatch):
    from fedray.sweep import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    (tmp_path / "base.yaml").write_text(dump_yaml({"extends": "fedproto_digits", "workers": 1}))
    (tmp_path / "tune").mkdir()
    methods = ["fedproto", "fedavg", "local", "fedtgp", "fedgh", "moon"]
    for turn, order in enumerate((methods, methods[::-1])):
        sweep = {
            "answers": "nothing",
            "space": {"algorithm": {"grid": order}},
            "scales": {"laptop": {"experiment": "base.yaml", "set": {"model.group": "mlp"}}},
        }
        (tmp_path / "tune" / "unlike.yaml").write_text(dump_yaml(sweep))
        shutil.rmtree(tmp_path / "results", ignore_errors=True)  # else the runs are taken from it
        out = tmp_path / f"sweep{turn}"
        assert main(["unlike", *COMMON, "--no-track", "--out", str(out)]) == 0
        frame = SweepOutcome(Study.read(out)).numbers.frame
        for method in order:
            words = ["base.yaml", f"algorithm={method}", "model.group=mlp", *COMMON]
            cold()
            single = run(words, tmp_path / f"single{turn}_{method}")
            [folder] = {*frame.loc[frame["algorithm"] == method, "folder"]}
            assert numbers(Path(folder)) == single, method


class _Pool:
    """Stands for a pool of workers."""

    def __init__(self, *_: object, **__: object) -> None:
        self.is_open = True
        self.begun: list[Any] = []
        self.begin = self.begun.append

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def process(monkeypatch) -> FederatedRun:
    """A trial's process whose pools are without Ray."""
    monkeypatch.setattr("fedray.studies.trainable.pool_of", _Pool)
    monkeypatch.setattr("fedray.runtime.ray_executor.RayExecutor", lambda _, pool: pool)
    trial = object.__new__(FederatedRun)
    trial._pool = trial._fits = None
    return trial


def with_workers(count: int, *more: str, method: str = "fedproto") -> Experiment:
    """Return the experiment of a run with so many workers."""
    return resolve(f"{method}_digits", [f"workers={count}", *more])


def test_the_next_trial_gets_the_workers_if_they_fit(process):
    first = process._executor(with_workers(2))(None)
    assert process._executor(with_workers(2, "seed=2", method="fedavg"))(None) is first
    assert len(first.begun) == 1
    third = process._executor(with_workers(3))(None)
    assert third is not first
    assert (first.is_open, third.is_open) == (False, True)


def test_one_worker_on_the_cpu_is_the_trials_own_process(process):
    pool = process._executor(with_workers(1, "gpus=1"))(None)
    assert isinstance(pool, _Pool)
    experiment = with_workers(1, *COMMON)
    assert isinstance(process._executor(experiment)(Assembly(experiment)), SerialExecutor)
    assert not pool.is_open


def test_a_worker_forgets_the_last_experiment_and_keeps_what_runs_share(worker):
    experiments = [
        resolve("fedproto_digits", [*COMMON, f"lr={lr}"]).model_dump_json(by_alias=True)
        for lr in (0.1, 0.2)
    ]
    runners = [worker._runner(experiment) for experiment in (*experiments, experiments[1])]
    assert runners[0].assembly.data is runners[1].assembly.data  # equal content is dealt once
    assert runners[1] is runners[2] is not runners[0]
