"""Every metric of the test is measured on validation images too, by the same functions."""

from __future__ import annotations

import numpy as np
import pytest
from answers import counts_of
from reference import guesses

from fedray.evaluation.measures import FineTunedAccuracy
from fedray.evaluation.metrics import DataFacts, Evaluated, declared_metrics, measure
from fedray.evaluation.splits import OWN
from fedray.storage.metric import VALIDATION, find_metric

HELD = {"data.validation_fraction": 0.25}
BOTH = DataFacts((OWN, VALIDATION + OWN))


def both(metrics) -> tuple[set[str], set[str]]:
    """What is measured on the test, and on validation images by the same names."""
    declared = declared_metrics()
    on_test = {name for name in metrics if find_metric(name, declared).on == "test"}
    held = {name for name in metrics if name.startswith(VALIDATION)}
    return on_test, {name.removeprefix(VALIDATION) for name in held}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("local", {"evaluation.top_k": 3, "finetune_epochs": 1, "model.group": "cnn2"}),
        ("fedavg", {"evaluation.global_test": True, "model.group": "cnn2"}),
        ("fedavg", {"join.clients": 1, "join.round": 2, "model.group": "cnn2"}),
    ],
)
def test_each_has_its_counterpart(run, method, changes):
    last = run(method, {**changes, **HELD, "rounds": 2}).results[-1].metrics
    on_test, on_validation = both(last)
    assert on_test == on_validation
    assert len(on_test) > 5


def test_it_is_the_models_accuracy_on_the_images_held_out(run):
    done = run("local", {**HELD, "rounds": 1, "model.group": "cnn3", "lr": 0.2})
    data, accuracies = done.assembly.data, []
    for client, part in enumerate(data.validation):
        accuracies.append((guesses(done, client, part) == data.images.labels[part]).mean())
    metrics = done.results[-1].metrics
    assert metrics["validation/local_accuracy"] == pytest.approx(np.mean(accuracies))


def test_holding_out_changes_training_images_and_nothing_of_the_test(run):
    plain, held = run("local", {"rounds": 1}), run("local", {**HELD, "rounds": 1})
    for before, after in zip(plain.assembly.data.test, held.assembly.data.test, strict=True):
        assert np.array_equal(before, after)
    assert not any(name.startswith(VALIDATION) for name in plain.results[-1].metrics)


def test_measuring_on_validation_images_changes_no_training(run, assemble):
    """The same images to train on, with and without validation images to look at."""
    from dataclasses import replace

    data = assemble("fedavg", {**HELD, "model.group": "cnn2"}).data
    keys = {"rounds": 2, "participation": 0.5, "model.group": "cnn2"}
    with_, without = (run("fedavg", keys, each) for each in (data, replace(data, validation=None)))
    assert with_.same_clients_as(without)
    for one, other in zip(with_.results, without.results, strict=True):
        left = {n: v for n, v in one.metrics.items() if not n.startswith(VALIDATION)}
        assert left == other.metrics


def test_a_client_without_validation_images_counts_for_none():
    counts = np.stack(
        [
            counts_of((1, 4), (1, 2))[:, 0],
            counts_of((4, 4), (0, 0))[:, 0],
            counts_of((2, 4), (3, 3))[:, 0],
        ]
    )
    found = measure(Evaluated(BOTH, counts, range(3), has_global_model=True))
    assert found["validation/local_accuracy"] == pytest.approx((0.5 + 1) / 2)
    assert found["validation/global_accuracy"] == pytest.approx(4 / 5)
    assert found["local_accuracy"] == pytest.approx((0.25 + 1 + 0.5) / 3)


def test_the_best_epoch_of_fine_tuning_is_chosen_on_validation_images():
    def tuned(*epochs: tuple[int, int]) -> np.ndarray:
        return np.stack([counts_of((test, 10), (held, 4))[:, 0] for test, held in epochs])

    counts = np.stack([tuned((1, 1), (9, 2), (5, 3)), tuned((8, 3), (2, 2), (3, 1))])
    found = measure(Evaluated(BOTH, counts[:, 0], range(2), fine_tuned=counts))
    assert found["finetuned_accuracy_best"] == pytest.approx((0.5 + 0.8) / 2)
    assert found["validation/finetuned_accuracy_best"] == pytest.approx(0.75)
    without = Evaluated(DataFacts(), fine_tuned=counts[:, :, :1])
    assert set(FineTunedAccuracy().compute(without)) == {"finetuned_accuracy"}


def test_what_novel_classes_cannot_give_is_declared_nowhere():
    names = {metric.name for metric in declared_metrics()}
    assert "validation/accuracy_base" in names
    assert not names & {f"validation/accuracy_{what}" for what in ("novel", "hm", "cm")}
    assert "validation/train_loss" not in names
    held = [metric for metric in declared_metrics() if metric.name.startswith(VALIDATION)]
    assert {metric.on for metric in held} == {"validation"}
