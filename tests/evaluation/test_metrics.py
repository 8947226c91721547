"""What is measured in a round, against scikit-learn and numbers by hand."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from answers import counts_of, evaluated
from reference import guesses
from sklearn.metrics import accuracy_score

from fedray.algorithms.personalised.local import Local
from fedray.base.errors import ClientError, FedrayError, UserError
from fedray.core import algorithms
from fedray.evaluation.measures import (
    ClassSizes,
    DomainAccuracy,
    FineTunedAccuracy,
    GlobalAccuracy,
    OwnTest,
    majority_classes,
)
from fedray.evaluation.metrics import DataFacts, Evaluated, Measure, check_domains, measure, metrics
from fedray.evaluation.protocols import Analysis
from fedray.evaluation.splits import OWN
from fedray.storage.metric import Metric

THREE = (9, 10), (20, 80), (1, 10)
"""Right answers and images of three clients."""


def own_test(*clients) -> dict[str, float]:
    return OwnTest().compute(evaluated(*clients))


def test_summaries_by_hand():
    found = own_test(*THREE)
    assert found == pytest.approx(
        {
            "local_accuracy": (0.9 + 0.25 + 0.1) / 3,
            "local_accuracy_weighted": 30 / 100,
            "local_accuracy_std": statistics.pstdev([0.9, 0.25, 0.1]),
            "local_accuracy_worst10": 0.1,
            "local_accuracy_best10": 0.9,
            "local_accuracy_jain": 1.25**2 / (3 * (0.81 + 0.0625 + 0.01)),
            "local_macro_f1": (0.9 + 0.25 + 0.1) / 3,
        }
    )


def test_tenths_are_means_over_clients():
    found = own_test(*((client, 100) for client in range(30)))
    assert found["local_accuracy_worst10"] == pytest.approx((0 + 1 + 2) / 300)
    assert found["local_accuracy_best10"] == pytest.approx((29 + 28 + 27) / 300)


@pytest.mark.parametrize(("correct", "jain"), [([5, 5, 5], 1), ([9, 0, 0], 1 / 3), ([0, 0, 0], 1)])
def test_jain_is_1_for_equals_and_1_over_n_for_one_winner(correct, jain):
    assert own_test(*((right, 10) for right in correct))["local_accuracy_jain"] == pytest.approx(
        jain
    )


def test_global_accuracy_is_right_answers_of_all_images_of_all():
    found = GlobalAccuracy().compute(replace(evaluated(*THREE), has_global_model=True))
    assert found == {"global_accuracy": 30 / 100}  # the mean over clients is 0.42
    assert GlobalAccuracy().compute(evaluated(*THREE)) == {}


def test_a_number_that_was_not_declared_or_is_there_already_is_refused(monkeypatch):
    class Further(Measure):
        name = "further"
        metrics = (Metric("something"), Metric("local_accuracy"))

        def compute(self, evaluated):
            return evaluated.cross_evaluations

    monkeypatch.setattr(metrics, "entries", lambda: (OwnTest, Further))
    given = lambda name: replace(evaluated(*THREE), cross_evaluations={name: 1.0})  # noqa: E731
    assert measure(given("something")) == {**own_test(*THREE), "something": 1.0}
    with pytest.raises(FedrayError, match=r"Further returned 'other'"):
        measure(given("other"))
    with pytest.raises(FedrayError, match=r"'local_accuracy' already exists"):
        measure(given("local_accuracy"))


@pytest.mark.parametrize("group", ["digits", "cnn3"])
def test_a_run_measures_every_client_on_its_own_test_split(run, group):
    done = run("local", {"participation": 0.5, "rounds": 1, "model.group": group, "lr": 0.2})
    data = done.assembly.data
    right = []
    for client, accuracy in done.results[1].per_client.items():
        truth = data.images.labels[data.test[client]]
        answers = guesses(done, client, data.test[client])
        assert accuracy == accuracy_score(truth, answers)
        right.append((answers == truth).sum())
    found = done.results[1].metrics
    assert len(right) == 4
    assert found["local_accuracy"] == pytest.approx(np.mean([*done.results[1].per_client.values()]))
    assert found["local_accuracy_weighted"] == sum(right) / sum(map(len, data.test))


@pytest.mark.parametrize(
    ("every", "evaluated"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (0, [5])]
)
def test_which_rounds_are_evaluated(run, every, evaluated):
    done = run("local", {"rounds": 5, "eval_every": every, "data.samples": 60})
    assert [r.round for r in done.results if r.per_client] == evaluated
    assert [r.round for r in done.results if "local_accuracy" in r.metrics] == evaluated


def test_what_fedtsp_says_about_its_prototypes(run):
    done = run("fedtsp", {"algorithm.tau": 0.1, "rounds": 1})
    found, state = done.results[1].metrics, done.servers[1]
    unit = torch.nn.functional.normalize
    cosines = unit(state["sent"], dim=1) @ unit(state["image"], dim=1).T
    assert bool(state["present"].all())
    assert found["retrieval_top1"] == pytest.approx(
        float((cosines.argmax(1) == torch.arange(10)).float().mean())
    )
    assert found["tau"] == pytest.approx(0.1)
    assert found["server_loss"] == pytest.approx(float(state["loss"]))
    similarity = torch.tensor(done.results[1].matrices["text_similarity"])
    torch.testing.assert_close(similarity.diagonal(), torch.ones(10))
    torch.testing.assert_close(similarity, similarity.T)
    assert 0.5 < found["agreement_pearson"] < 1  # one small step after the first
    assert done.results[0].metrics["agreement_spearman"] <= 1
    declared = done.assembly.algorithm.analysis_metrics
    for name in ("retrieval_top1", "tau", "server_loss", "agreement_pearson", "agreement_spearman"):
        assert name in found
        assert any(metric.matches(name) for metric in declared)


@pytest.fixture
def analysed(run, monkeypatch):
    """`analysed(given, *declared)` runs a method with this analysis."""

    def analysed(given, *declared: Metric) -> None:
        class Analysing(Local):
            analysis_metrics: ClassVar = declared

            def analyse(self, *_: object) -> Analysis:
                return Analysis(given)

        if not declared:
            del Analysing.analysis_metrics
        monkeypatch.setitem(algorithms._entries, "local", Analysing)
        run("local", {"rounds": 1})

    return analysed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"undeclared": 1.0},
            "Analysing returned 'undeclared', which it does not declare",
        ),
        ({"local_accuracy": 1.0}, "the metric 'local_accuracy' already exists"),
        ({"drift": float("nan")}, "the metric 'drift' is nan, expected a finite number"),
        ({"drift": torch.ones(1)}, r"the metric 'drift' is tensor\(\[1.\]\), expected a finite"),
    ],
)
def test_an_analysis_gives_what_it_has_declared(analysed, given, message):
    with pytest.raises(FedrayError, match=message):
        analysed(given, Metric("local_accuracy"), Metric("drift"))


def test_an_analysis_without_any_declaration_is_not_passed_over(analysed):
    with pytest.raises(FedrayError, match="returned 'drift', which it does not declare"):
        analysed({"drift": 1.0})


def test_clients_and_domains_without_test_images_count_in_nothing():
    clients = (3, 4), (0, 0), (1, 4)
    domains = {"art": [0], "photo": [1], "sketch": [2]}
    found = DomainAccuracy().compute(evaluated(*clients, domains=domains))
    assert found["accuracy_art"] == 0.75
    assert "accuracy_photo" not in found
    assert found["accuracy_domains"] == own_test(*clients)["local_accuracy"] == 0.5


def test_a_domains_accuracy_is_right_answers_of_all_images_of_its_clients():
    domains = {"art": [0, 1], "photo": [2]}
    found = DomainAccuracy().compute(evaluated((0, 3), (300, 300), (1, 4), domains=domains))
    assert found["accuracy_art"] == 300 / 303
    assert found["accuracy_domains"] == (300 / 303 + 1 / 4) / 2


def test_statistics_of_domains_over_clients_by_hand():
    """Two clients of 3 and 300 images count alike, where the pooled accuracy follows the second."""
    clients = (0, 3), (300, 300), (1, 4), (0, 0)
    domains = {"art": [0, 1], "photo": [2, 3], "sketch": [3]}
    found = DomainAccuracy().compute(evaluated(*clients, domains=domains))
    assert {name: value for name, value in found.items() if name.startswith("client_")} == {
        "client_accuracy_art": 0.5,
        "client_accuracy_art_std": 0.5,
        "client_accuracy_photo": 0.25,
        "client_accuracy_photo_std": 0,
        "client_accuracy_domains": 0.375,
    }
    assert DomainAccuracy().compute(evaluated(*clients)) == {}


def test_every_client_on_every_domain_by_hand():
    counts = [[(1, 1), (art, 4), (photo, 2), (1, 2)] for art, photo in ((4, 1), (2, 1))]
    facts = DataFacts(("base", "domain:art", "domain:photo", OWN))
    by_split = np.stack([counts_of(*client)[:, 0] for client in counts])
    found = DomainAccuracy().compute(Evaluated(facts, by_split, range(2)))
    assert found == {
        "everyone_accuracy_art": 0.75,
        "everyone_accuracy_art_std": 0.25,
        "everyone_accuracy_photo": 0.5,
        "everyone_accuracy_photo_std": 0,
        "everyone_accuracy_domains": 0.625,
    }


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("domains", "photo"), r"domain 'domains' .* 'accuracy_domains', .* another metric"),
        (("photo", "base"), r"domain 'base' .* 'accuracy_base', .* another metric"),
        (
            ("photo", "photo_std"),
            r"domain 'photo' .* 'client_accuracy_photo_std', .* another metric",
        ),
    ],
)
def test_a_domain_is_not_called_as_another_metric_is(names, said):
    check_domains(("photo", "art", "clip art"))
    with pytest.raises(UserError, match=said + ".*rename the domain$"):
        check_domains(names)


@pytest.mark.parametrize("shape", [(1, 10), (3, 9)])
def test_a_prediction_of_another_shape_is_no_accuracy(run, monkeypatch, shape):
    """One row would be compared with every label."""
    monkeypatch.setattr(Local, "predict", lambda self, output, local: torch.zeros(shape))
    with pytest.raises(
        ClientError, match=rf"Local\.predict returned .* \[{shape[0]}, {shape[1]}\]"
    ):
        run("local", {"rounds": 1})


def test_majority_classes_are_those_above_the_clients_mean():
    counts = np.array([[9, 0, 1, 2], [5, 5, 5, 5], [0, 0, 0, 8], [3, 2, 4, 3]])
    assert np.argwhere(majority_classes(counts)).tolist() == [[0, 0], [2, 3], [3, 2]]


def test_accuracy_on_majority_and_minority_classes_by_hand():
    def by_size(*majority) -> dict[str, float]:
        clients = ([3, 1, 0], [4, 2, 2]), ([0, 1, 5], [1, 1, 5]), ([0, 0, 0], [0, 0, 0])
        is_large = np.array([[c in classes for c in range(3)] for classes in majority])
        return ClassSizes().compute(evaluated(*clients, majority=is_large if majority else None))

    found = by_size({0}, {1, 2}, {0})
    assert found["accuracy_majority"] == (3 + 6) / (4 + 6)
    assert found["accuracy_minority"] == (1 + 0) / (4 + 1)
    assert "accuracy_majority" not in by_size(set(), set(), {0})
    assert by_size() == {}


def test_a_run_counts_by_the_clients_own_training_images(run):
    changes = {
        "rounds": 6,
        "model.group": "cnn2",
        "data.partition.alpha": 1,
        "optimizer.momentum": 0.9,
    }
    done = run("local", changes)
    data, large, small = done.assembly.data, [], []
    for client in range(4):
        train, test = data.images.labels[data.train[client]], data.images.labels[data.test[client]]
        right = guesses(done, client, data.test[client]) == test
        for label, correct in zip(test, right, strict=True):
            (large if (train == label).sum() > len(train) / 10 else small).append(correct)
    found = done.results[-1].metrics
    assert found["accuracy_majority"] == pytest.approx(np.mean(large))
    assert found["accuracy_minority"] == pytest.approx(np.mean(small))


def test_f1_is_scikit_learns_and_its_micro_average_is_the_accuracy():
    from sklearn.metrics import f1_score

    random = np.random.default_rng(0)
    truth, answers = random.integers(0, 5, 200), random.integers(0, 7, 200)  # 5 and 6: no images
    right = truth[truth == answers]
    counts = [np.bincount(labels, minlength=7) for labels in (right, truth, answers)]
    macro = f1_score(truth, answers, labels=range(5), average="macro")
    one = evaluated(counts)
    assert one.tested.accuracy == pytest.approx(f1_score(truth, answers, average="micro"))
    assert OwnTest().compute(one)["local_macro_f1"] == pytest.approx(macro)


def test_fine_tuned_is_after_the_last_epoch_and_the_best_of_all():
    epochs = [[(1, 4), (3, 4), (2, 4)], [(2, 2), (1, 2), (1, 2)], [(0, 0)] * 3]
    counts = np.stack([counts_of(*client) for client in epochs])
    found = FineTunedAccuracy().compute(Evaluated(DataFacts(select="test"), fine_tuned=counts))
    assert found == {"finetuned_accuracy": 0.5, "finetuned_accuracy_best": (0.75 + 1) / 2}


def test_newcomers_count_alike_however_many_images_they_have():
    everyone = evaluated(*THREE, (1, 2), (2, 8), (0, 0), newcomers=range(3, 6))
    found = OwnTest().compute(replace(everyone, joined=range(3)))
    assert found.pop("new_accuracy") == (0.5 + 0.25) / 2
    assert found.pop("earlier_accuracy") == found["local_accuracy"]
    assert found == own_test(*THREE)


def test_the_learning_rate_is_measured_where_it_changes(run):
    halved = {"name": "steps", "milestones": [1, 2], "factor": 0.5}
    done = run("local", {"rounds": 3, "model.group": "mlp", "lr_schedule": halved})
    rates = [result.metrics.get("learning_rate") for result in done.results]
    assert rates == [None, 0.05, 0.025, 0.0125]
    constant = run("local", {"rounds": 1, "model.group": "mlp"})
    assert "learning_rate" not in constant.results[1].metrics
    warmed_up = {"name": "constant", "warmup_rounds": 1, "warmup_lr": 0.01}
    warm = run("local", {"rounds": 2, "model.group": "mlp", "lr_schedule": warmed_up})
    assert [warm.results[round_].metrics["learning_rate"] for round_ in (1, 2)] == [0.01, 0.05]
