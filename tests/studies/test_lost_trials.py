"""Trials whose processes are lost start again, and are given up when they make no progress."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from fedray.config import dump_yaml
from fedray.errors import RunFailed, UserError
from fedray.records import Round, Traffic
from fedray.sweep import trial as trials
from fedray.studies.study import Ledger
from fedray.sweep.seeds import merge
from fedray.studies.space import plan_sweep
from fedray.sweep.watch import Watcher

SWEEP = {
    "answers": "nothing",
    "search": "grid",
    "space": {"lr": {"grid": [0.1, 0.2]}},
    "scales": {
        "laptop": {"experiment": "fedavg_digits", "set": {"faults": {"max_failures": 1}}},
    },
}


@pytest.fixture
def ledger(tmp_path, monkeypatch) -> Ledger:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "tiny.yaml").write_text(dump_yaml(SWEEP))
    found = Ledger(tmp_path / "home", plan_sweep("tiny"))
    for number, lr in enumerate((0.1, 0.2)):
        found.add(number, {"lr": lr})
    return found


@pytest.fixture
def recover(ledger, tmp_path):
    """`recover(error)` has trial 0 end with an error and start again; why it is given up, if so."""
    watcher = Watcher(ledger, None, None)  # type: ignore[arg-type]
    trial = SimpleNamespace(
        config={"trial": {"number": 0, "values": {"lr": 0.1}}},
        pickled_error_file=str(tmp_path / "error.pkl"),
    )

    def recover(error: Exception | None) -> str | None:
        path = Path(trial.pickled_error_file)
        path.unlink(missing_ok=True)
        if error is not None:
            path.write_bytes(cloudpickle.dumps(error))
        watcher.on_trial_recover(0, [], trial)
        return trial.config["trial"].get("given_up")

    return recover


def in_a_task(cause: Exception) -> RayTaskError:
    return RayTaskError("train", "traceback", cause)


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ActorUnavailableError("no answer", None),
        in_a_task(RunFailed("workers were lost 4 time(s)")),
        None,
    ],
)
def test_a_trial_that_is_lost_again_without_a_new_round_is_given_up(recover, ledger, error):
    assert recover(error) is None
    ledger.trials[0].last_round = 3
    assert recover(error) is None
    ledger.trials[0].last_round = 4
    assert recover(error) is None
    assert "it died 2 time(s) (faults.max_failures=1): " in recover(error)


def test_what_was_given_up_says_so_instead_of_starting(monkeypatch, tmp_path, ledger):
    from ray import tune

    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tune, "report", said.append)
    config = {"trial": {"number": 0, "values": {"lr": 0.1}, "given_up": "it died 2 time(s)"}}
    trials.run_trial(config, ledger.plan, tmp_path / "home")
    assert [report["failed"] for report in said] == ["it died 2 time(s)"]
    assert not (tmp_path / "home").exists()


def test_a_trial_whose_code_exits_has_failed_and_was_not_stopped(monkeypatch, tmp_path):
    from ray import tune

    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tune, "report", said.append)

    def exits() -> Any:
        yield {"objective": 0.5}
        sys.exit(0)

    trials.tell({"number": 0}, tmp_path, exits)
    assert [report.get("failed") for report in said] == [None, "SystemExit: 0"]

    def stop(report: Any) -> None:
        sys.exit(0)

    monkeypatch.setattr(tune, "report", stop)
    with pytest.raises(SystemExit):
        trials.tell({"number": 0}, tmp_path, exits)


def test_a_trial_whose_files_are_damaged_fails_once_and_for_all(monkeypatch, ledger):
    said: list[str] = []
    show = SimpleNamespace(begin=lambda entry: None, end=lambda entry: said.append(entry.status))
    watcher = Watcher(ledger, None, show)  # type: ignore[arg-type]

    def damaged(entry: Any) -> None:
        raise UserError("rounds.jsonl is damaged")

    monkeypatch.setattr(ledger, "rounds_of", damaged)
    trial = SimpleNamespace(config={"trial": {"number": 0}}, trial_id="0", last_result={})
    ledger.home.mkdir()
    watcher.on_trial_start(0, [], trial)
    watcher.on_trial_complete(0, [], trial)
    assert (said, ledger.trials[0].reason) == (["failed"], "rounds.jsonl is damaged")


def test_a_number_that_was_never_measured_is_not_needed(ledger):
    metrics = {"validation/local_accuracy": 0.5}
    done = Round(1, 0, metrics, {}, Traffic(), Traffic())
    merged = merge([done], ledger.plan.objective, ledger.plan.metric)
    ledger.measure(ledger.trials[0], [merged])
    assert (ledger.trials[0].objective, ledger.trials[0].final) == (0.5, None)
