"""Runs whose processes are lost begin again, and are given up after `faults.max_failures` times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sweeps import EXPERIMENT, sweep, write_sweep

from fedray.config import dump_yaml
from fedray.studies.tune import Recorder, StudySearch, run_trials


class _Shown:
    """Stands for the progress that is shown."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture(autouse=True)
def _short_runs(here) -> None:
    tree = {**EXPERIMENT, "rounds": 1, "faults": {"max_failures": 1}}
    (here / "tiny.yaml").write_text(dump_yaml(tree))
    write_sweep()


def test_how_runs_end_is_recorded_as_ray_tune_tells_it(here):
    study = sweep()
    search = StudySearch(study)
    recorder = Recorder(study, _Shown(), lambda: None)  # type: ignore[arg-type]

    def tell(what: str, trial: SimpleNamespace, **more: Any) -> None:
        getattr(recorder, f"on_trial_{what}")(0, [], trial, **more)

    def begin(name: str) -> SimpleNamespace:
        trial = SimpleNamespace(trial_id=name, config=search.suggest(name), last_result={})
        tell("start", trial)
        return trial

    one, two = begin("one"), begin("two")
    assert [trial.config["algorithm.lambda"] for trial in (one, two)] == [0, 1]
    assert search.suggest("three") is None  # one of them may be lost
    chooser = study.plan.chosen_by("all")
    tell("result", one, result={"round": 1, "best_round": 1, chooser: 0.5})
    first, second = study.needed.values()
    assert (study.runs[first.key].objective, study.status_of(first)) == (0.5, "running")
    tell("error", one)
    again = begin("one again")
    assert again.config == one.config
    tell("error", again)  # it may be lost once
    two.last_result = {"round": 1, "failed": "it diverged: a NaN"}
    tell("complete", two)
    assert study.failures[first.key].startswith("its processes died")
    assert study.failures[second.key] == "it diverged: a NaN"
    assert study.repeatable == [first.key]
    assert search.suggest("three") == StudySearch.FINISHED


def test_a_run_that_is_lost_begins_again_a_bounded_number_of_times(here, monkeypatch):
    asked = []
    monkeypatch.setattr("fedray.studies.tune.StopIfRayDied", lambda how: None)
    monkeypatch.setattr(
        "ray.tune.Tuner",
        lambda trainable, param_space, tune_config, run_config: (
            asked.append(run_config) or _Tuner()
        ),
    )
    run_trials(sweep(), _Shown(), 1, lambda: None, lambda: None)  # type: ignore[arg-type]
    [config] = asked
    assert config.failure_config.max_failures == 1


class _Tuner:
    """Stands for a `Tuner` of which no trial ran."""

    def fit(self) -> list[Any]:
        return []
