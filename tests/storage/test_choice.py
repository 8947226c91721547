"""Which round is the best: never round 0, never by the test, unless that is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import write_whole

from fedray.evaluation.metrics import declared_metrics
from fedray.storage.environment import Environment
from fedray.storage.metric import Metric, best_round, chosen_by
from fedray.storage.run import Round, Run, RunInfo
from fedray.storage.run_folder import RunFolder

TEST = [0.99, 0.5, 0.9, 0.6]
VALIDATION = [0.98, 0.8, 0.4, 0.7]
"""The test's best round is 2, validation's 1; the untrained model is better than both."""


def planted(select="validation", *, held=True, **config) -> Run:
    rounds = []
    for number, (test, validation) in enumerate(zip(TEST, VALIDATION, strict=True)):
        metrics = {"local_accuracy": test, "local_accuracy_weighted": test, "accuracy_novel": test}
        if held:
            metrics["validation/local_accuracy"] = validation
        if number:
            metrics["train_loss"] = 1 / number
        rounds.append(Round(number, 1.0, metrics))
    keys = {"rounds": 3, "report": {"select": select}, **config}
    info = RunInfo(keys, "id", Environment(), metrics=tuple(declared_metrics()))
    return Run(info, rounds)


def test_the_best_round_is_chosen_on_validation_and_its_test_is_reported():
    best = planted().best
    assert (best.round, best.local_accuracy) == (1, 0.5)
    assert planted().value("local_accuracy", "best", "local_accuracy") == 0.5
    assert planted().value("validation/local_accuracy", "best", "validation/local_accuracy") == 0.8
    assert planted().value("local_accuracy", "final", "local_accuracy") == 0.6


def test_every_metric_is_read_in_the_round_of_the_one_that_chooses():
    run = planted()
    run.rounds[3].metrics["validation/global_accuracy"] = 0.9
    for done, value in zip(run.rounds, (0.1, 0.2, 0.3, 0.8), strict=True):
        done.metrics["global_accuracy"] = value
    assert run.value("global_accuracy", "best", "global_accuracy") == 0.8
    assert run.value("global_accuracy", "best", "local_accuracy") == 0.2


def test_the_papers_switch_chooses_on_the_test_and_never_the_untrained_model():
    run = planted("test")
    assert (run.best.round, run.best.local_accuracy) == (2, 0.9)
    assert run.value("local_accuracy", "best", "local_accuracy") == 0.9


def test_without_validation_images_nothing_is_chosen():
    run = planted(held=False)
    assert run.best is None
    assert run.value("local_accuracy", "best", "local_accuracy") is None
    assert run.value("local_accuracy", "final", "local_accuracy") == 0.6
    assert run.value("train_loss", "best", "train_loss") == pytest.approx(1 / 3), (
        "training chooses for itself"
    )
    assert run.value("dice", "best", "dice") is None
    assert (Run(run.info).best, Run(run.info).done) == (None, -1)


def test_what_validation_images_cannot_give_is_taken_in_the_headlines_round():
    assert planted().value("accuracy_novel", "best", "accuracy_novel") == 0.5
    assert planted("test").value("accuracy_novel", "best", "accuracy_novel") == 0.9


@pytest.mark.parametrize("select", ["validation", "test"])
def test_best_and_final_follow_from_the_rounds_that_were_written(tmp_path, select):
    run = planted(select)
    write_whole(tmp_path, run)
    read = RunFolder(tmp_path).read()
    assert read.final.round == 3
    assert read.best.round == {"validation": 1, "test": 2}[select]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.sampled_from(["max", "min", None]))
def test_the_first_of_the_best_rounds(values, direction):
    found = best_round(dict(enumerate(values)), direction)
    if len(values) == 1:
        assert found is None
        return
    trained = values[1:]
    wanted = min(trained) if direction == "min" else max(trained)
    assert found == 1 + trained.index(wanted)


def test_a_metric_without_a_better_way_follows_the_headline():
    spread = Metric("local_accuracy_std", direction=None)
    names = {"validation/local_accuracy_std", "validation/local_accuracy"}
    assert chosen_by(spread, names, "validation") == "validation/local_accuracy"
    assert chosen_by(spread, {"local_accuracy"}, "validation") is None
    assert chosen_by(Metric("tau", "number", None, None), names, "validation") == "tau"
