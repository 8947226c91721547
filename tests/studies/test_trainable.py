"""`fedray.trainable` with a user's own Tuner, and the trials of a study."""

from __future__ import annotations

import math

import pytest
from sweeps import EXPERIMENT

import fedray
from fedray.base.errors import RunFailed, UserError
from fedray.config import dump_yaml
from fedray.storage.run_folder import RunFolder
from fedray.studies.trainable import FederatedRun

CHOOSER = "local_accuracy"


@pytest.fixture(autouse=True)
def _tiny(here):
    (here / "tiny.yaml").write_text(dump_yaml({**EXPERIMENT, "rounds": 3}))


def reports_of(trial, most: int = 99) -> list[dict]:
    found = [trial.step()]
    while not found[-1].get("done") and len(found) < most:
        found.append(trial.step())
    return found


def test_every_round_is_reported_with_the_one_chosen_so_far(here):
    trial = fedray.trainable("tiny.yaml", store=here / "store")({"lr": 0.1, "seed": 3})
    found = reports_of(trial)
    assert [report["round"] for report in found] == [1, 2, 3]
    assert [report["training_iteration"] for report in found] == [1, 2, 3]
    run = RunFolder(here / "store" / found[0]["folder"])
    rounds = run.read().rounds
    values = [done.metrics[CHOOSER] for done in rounds]
    for report in found:
        best = max(range(1, report["round"] + 1), key=lambda number: (values[number], -number))
        assert report["best_round"] == best
        assert report["train_loss"] == rounds[best].metrics["train_loss"]
        assert report[f"round/{CHOOSER}"] == values[report["round"]]
    assert run.read().info.seed == 3


def test_what_is_finished_ends_at_once_and_what_is_not_goes_on(here):
    kind = fedray.trainable("tiny.yaml", store=here / "store", rounds=4)
    whole = reports_of(kind({"lr": 0.1}))
    trial = kind({"lr": 0.2})
    first = reports_of(trial, 2)
    assert trial.reset_config({"lr": 0.1})  # as Ray Tune does with reuse_actors
    assert reports_of(trial) == whole[-1:]
    trial.reset_config({"lr": 0.2})
    rest = reports_of(trial)
    assert [report["round"] for report in first + rest] == [1, 2, 3, 4]
    other = fedray.trainable("tiny.yaml", store=here / "other", rounds=4)({"lr": 0.2})
    assert {**reports_of(other)[-1], "folder": rest[-1]["folder"]} == rest[-1]


def test_keys_that_vary_together_and_the_index_of_a_repeater_are_resolved(here):
    kind = fedray.trainable("tiny.yaml", seeds=[7, 9], batch_size=8)
    joint = {"data.clients, participation": [4, 0.5], "__trial_index__": 1}
    experiment = kind.task.experiment(joint)
    found = experiment.data.clients, experiment.participation, experiment.seed
    assert found == (4, 0.5, 9)
    assert experiment.batch_size == 8
    assert kind.default_resource_request(joint).bundles == [{"CPU": 1.0}]
    with pytest.raises(UserError, match="unknown key 'lrr'"):
        kind.task.experiment({"lrr": 1})


PLUGIN = """
import sys
from fedray.plugin import FedAvg, method


@method("moody", "Moody", "-")
class Moody(FedAvg):
    "FedAvg whose loss is not finite on one seed, and which exits on another."

    def loss(self, output, batch, local):
        seed = local.client.setting.streams.seed
        if seed == 2:
            sys.exit(0)
        return super().loss(output, batch, local) * (float("nan") if seed == 1 else 1.0)
"""


def test_a_run_that_fails_reports_why_and_has_no_number(here):
    (here / "moody.py").write_text(PLUGIN)
    kind = fedray.trainable(
        "tiny.yaml",
        store=here / "store",
        plugins="moody.py",
        algorithm="moody",
        **{"model.group": "mlp"},
    )
    trial = kind({"seed": 1})
    [diverged] = reports_of(trial)
    assert diverged["failed"].startswith("it diverged: client ")
    assert math.isnan(diverged[CHOOSER])
    assert RunFolder(here / "store" / diverged["folder"]).error.exists()
    trial.reset_config({"seed": 2})
    assert "SystemExit" in reports_of(trial)[0]["failed"]
    trial.reset_config({"seed": 0})
    assert "failed" not in reports_of(trial)[-1]


def test_processes_that_died_are_an_error_for_which_ray_tune_begins_again(here, monkeypatch):
    trial = fedray.trainable("tiny.yaml", store=here / "store")({})

    def lost(self, config):
        raise RunFailed("workers were lost")
        yield

    monkeypatch.setattr(FederatedRun, "_run", lost)
    trial.reset_config({})
    with pytest.raises(RunFailed):
        trial.step()


def test_a_trial_works_in_the_folder_that_ray_tune_has_left(here, monkeypatch):
    """Processes of a joined cluster do not have the driver's RAY_CHDIR_TO_TRIAL_DIR=0."""
    (here / "trial").mkdir()
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(here))
    kind = fedray.trainable("tiny.yaml", store="store")
    monkeypatch.chdir(here / "trial")
    kind({})
    assert (here / "tiny.yaml").resolve() == (here / ".").resolve() / "tiny.yaml"
    import os

    assert os.getcwd() == str(here)


def test_a_run_whose_files_are_damaged_fails(here):
    kind = fedray.trainable("tiny.yaml", store=here / "store")
    folder = here / "store" / reports_of(kind({}))[-1]["folder"]
    _, *lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(["{}\n", *lines]))
    assert "rounds.jsonl, line 1, cannot be read" in reports_of(kind({}))[0]["failed"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_strangers_program_tunes_with_optuna_and_with_asha(here):
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    from fedray.runtime.cluster import connect

    connect(num_cpus=2)

    def tuned(name, **options):
        tuner = tune.Tuner(
            fedray.trainable("tiny.yaml", store=here / "store"),
            param_space={"lr": tune.loguniform(1e-3, 0.5), "algorithm.lambda": tune.choice([0, 5])},
            tune_config=tune.TuneConfig(
                metric=CHOOSER, mode="max", num_samples=4, reuse_actors=True, **options
            ),
            run_config=tune.RunConfig(storage_path=str(here / "tune"), name=name, verbose=0),
        )
        return tuner.fit()

    grids = [
        tuned(name, search_alg=OptunaSearch(seed=0), max_concurrent_trials=1)
        for name in ("first", "again")
    ]
    keys = (CHOOSER, "best_round", "folder")
    first, again = (
        [(trial.config, *(trial.metrics[key] for key in keys)) for trial in grid] for grid in grids
    )
    assert first == again  # nothing is trained again
    assert {trial.metrics["round"] for trial in grids[1]} == {3}
    runs = {RunFolder(here / folder).path for *_, folder in first}
    assert len(runs) == len(list((here / "store").iterdir())) == 4
    assert grids[0].get_best_result().metrics[CHOOSER] == max(value for _, value, *_ in first)
    stopped = tuned("asha", scheduler=ASHAScheduler(max_t=3, grace_period=1, reduction_factor=2))
    assert len(stopped) == 4
    assert not stopped.errors
