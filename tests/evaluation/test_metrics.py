"""What is measured, against scikit-learn, SciPy and numbers by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score

from fedray.evaluation import (
    Score,
    majority_classes,
    matrix_agreement,
    mean_and_std,
    retrieval_top1,
    summarise,
)
from fedray.models import build

SCORES = {2: Score(1, 10), 0: Score(9, 10), 1: Score(20, 80)}


def test_summaries_by_hand():
    found = summarise(SCORES)
    assert found == pytest.approx(
        {
            "local_accuracy": (0.9 + 0.25 + 0.1) / 3,
            "local_accuracy_weighted": 30 / 100,
            "local_accuracy_std": statistics.pstdev([0.9, 0.25, 0.1]),
            "local_accuracy_worst10": 0.1,
            "local_accuracy_best10": 0.9,
            "local_accuracy_jain": 1.25**2 / (3 * (0.81 + 0.0625 + 0.01)),
        }
    )


def test_tenths_are_means_over_clients():
    scores = {client: Score(client, 100) for client in range(30)}
    found = summarise(scores)
    assert found["local_accuracy_worst10"] == pytest.approx((0 + 1 + 2) / 300)
    assert found["local_accuracy_best10"] == pytest.approx((29 + 28 + 27) / 300)


@pytest.mark.parametrize(("correct", "jain"), [([5, 5, 5], 1), ([9, 0, 0], 1 / 3), ([0, 0, 0], 1)])
def test_jain_is_1_for_equals_and_1_over_n_for_one_winner(correct, jain):
    scores = {client: Score(right, 10) for client, right in enumerate(correct)}
    assert summarise(scores)["local_accuracy_jain"] == pytest.approx(jain)


def test_the_order_of_replies_does_not_matter():
    scores = {client: Score(client**2 % 7, 7 + client) for client in range(11)}
    backwards = dict(reversed(scores.items()))
    assert summarise(scores) == summarise(backwards)


def test_retrieval_by_hand():
    cosines = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.1], [0.0, 0.3, 0.4]])
    assert retrieval_top1(cosines) == pytest.approx(2 / 3)
    assert retrieval_top1(cosines.T) == pytest.approx(2 / 3)
    assert retrieval_top1(torch.eye(4)) == 1
    assert retrieval_top1(torch.eye(4).roll(1, 0)) == 0


@given(st.integers(3, 12), st.integers(0, 100))
def test_agreement_is_scipys_on_the_upper_triangle(classes, seed):
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((2, classes, classes)).astype(np.float32)
    a, b = a + a.T, b + b.T + a
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    x, y = ([m[i, j] for i, j in pairs] for m in (a, b))
    pearson, spearman = matrix_agreement(torch.from_numpy(a), torch.from_numpy(b))
    assert pearson == pytest.approx(pearsonr(x, y).statistic, abs=1e-6)
    assert spearman == pytest.approx(spearmanr(x, y).statistic, abs=1e-6)


def test_agreement_ignores_the_diagonal_and_knows_constants():
    matrix = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 5.0], [2.0, 5.0, 0.0]])
    other = 3 * matrix - 1 + 100 * torch.eye(3)
    assert matrix_agreement(matrix, other) == pytest.approx((1, 1))
    assert matrix_agreement(matrix, -other) == pytest.approx((-1, -1))
    assert matrix_agreement(matrix, torch.ones(3, 3)) == (0.0, 0.0)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_mean_and_sample_deviation(values):
    mean, deviation = mean_and_std(values)
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert deviation == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_one_value_has_no_deviation():
    assert mean_and_std([0.5]) == (0.5, 0.0)


@pytest.mark.parametrize("group", ["digits", "cnn3"])
def test_a_run_measures_every_client_on_its_own_test_split(run, group):
    done = run("local", {"participation": 0.5, "rounds": 1, "model.group": group, "lr": 0.2})
    data = done.assembly.data
    right = []
    for client, accuracy in done.results[1].per_client.items():
        name = done.assembly.architectures[client]
        model = build(name, **done.assembly.shape, generator=None).eval()
        model.load_state_dict(dict(done.models[client]))
        images = torch.from_numpy(data.images.images[data.test[client]])
        truth = data.images.labels[data.test[client]]
        with torch.no_grad():
            guesses = model(images.float() / 127.5 - 1).logits.argmax(1).numpy()
        assert accuracy == accuracy_score(truth, guesses)
        right.append((guesses == truth).sum())
    metrics = done.results[1].metrics
    assert len(right) == 4
    assert metrics["local_accuracy"] == pytest.approx(
        np.mean([*done.results[1].per_client.values()])
    )
    assert metrics["local_accuracy_weighted"] == sum(right) / sum(map(len, data.test))


@pytest.mark.parametrize(
    ("every", "evaluated"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (0, [5])]
)
def test_which_rounds_are_evaluated(run, every, evaluated):
    done = run("local", {"rounds": 5, "eval_every": every, "data.samples": 60})
    assert [r.round for r in done.results if r.per_client] == evaluated
    assert [r.round for r in done.results if "local_accuracy" in r.metrics] == evaluated


def test_evaluation_changes_nothing(run):
    often, never = (run("local", {"model.group": "cnn3", "eval_every": e}) for e in (1, 0))
    assert all(
        torch.equal(often.models[client][name], never.models[client][name])
        for client in range(4)
        for name in often.models[client]
    )


def test_what_fedtsp_says_about_its_prototypes(run):
    done = run("fedtsp", {"algorithm.tau": 0.1, "rounds": 1})
    metrics, state = done.results[1].metrics, done.servers[1]
    unit = torch.nn.functional.normalize
    cosines = unit(state["sent"], dim=1) @ unit(state["image"], dim=1).T
    assert bool(state["present"].all())
    assert metrics["retrieval_top1"] == pytest.approx(
        float((cosines.argmax(1) == torch.arange(10)).float().mean())
    )
    assert metrics["tau"] == pytest.approx(0.1)
    assert metrics["server_loss"] == pytest.approx(float(state["loss"]))
    similarity = torch.tensor(done.results[1].matrices["text_similarity"])
    torch.testing.assert_close(similarity.diagonal(), torch.ones(10))
    torch.testing.assert_close(similarity, similarity.T)
    assert 0.5 < metrics["agreement_pearson"] < 1  # one small step after the first
    assert done.results[0].metrics["agreement_spearman"] <= 1


def test_clients_and_domains_without_test_images_count_in_nothing():
    scores = {0: Score(3, 4), 1: Score(0, 0), 2: Score(1, 4)}
    found = summarise(scores, {"art": [0], "photo": [1], "sketch": [2]})
    assert found["accuracy_art"] == 0.75
    assert "accuracy_photo" not in found
    assert found["accuracy_domains"] == found["local_accuracy"] == 0.5


def test_majority_classes_are_those_above_the_clients_mean():
    counts = np.array([[9, 0, 1, 2], [5, 5, 5, 5], [0, 0, 0, 8], [3, 2, 4, 3]])
    assert majority_classes(counts) == [{0}, set(), {3}, {2}]


def test_accuracy_on_majority_and_minority_classes_by_hand():
    scores = {
        0: Score.by_class([3, 1, 0], [4, 2, 2]),
        1: Score.by_class([0, 1, 5], [1, 1, 5]),
        2: Score.by_class([0, 0, 0], [0, 0, 0]),
    }
    assert scores[0] == Score(4, 8, ((3, 4), (1, 2), (0, 2)))
    found = summarise(scores, majority=[{0}, {1, 2}, {0}])
    assert found["accuracy_majority"] == (3 + 6) / (4 + 6)
    assert found["accuracy_minority"] == (1 + 0) / (4 + 1)
    assert "accuracy_majority" not in summarise(scores, majority=[set(), set(), {0}])
    assert "accuracy_minority" not in summarise(scores)


def test_a_run_counts_by_the_clients_own_training_images(run):
    changes = {"rounds": 6, "model.group": "cnn2", "data.partition.alpha": 1, "momentum": 0.9}
    done = run("local", changes)
    data, large, small = done.assembly.data, [], []
    for client in range(4):
        model = build("cnn2", **done.assembly.shape, generator=None).eval()
        model.load_state_dict(dict(done.models[client]))
        train, test = data.images.labels[data.train[client]], data.images.labels[data.test[client]]
        images = torch.from_numpy(data.images.images[data.test[client]]).float() * (2 / 255) - 1
        with torch.no_grad():
            right = model(images).logits.argmax(1).numpy() == test
        for label, correct in zip(test, right, strict=True):
            (large if (train == label).sum() > len(train) / 10 else small).append(correct)
    metrics = done.results[-1].metrics
    assert metrics["accuracy_majority"] == pytest.approx(np.mean(large))
    assert metrics["accuracy_minority"] == pytest.approx(np.mean(small))
    assert metrics["accuracy_majority"] > metrics["accuracy_minority"]


def test_f1_is_scikit_learns_and_its_micro_average_is_the_accuracy():
    from sklearn.metrics import f1_score

    random = np.random.default_rng(0)
    truth, guesses = random.integers(0, 5, 200), random.integers(0, 7, 200)  # 5 and 6: no images
    right = truth[truth == guesses]
    score = Score.by_class(*(np.bincount(x, minlength=7).tolist() for x in (right, truth, guesses)))
    macro = f1_score(truth, guesses, labels=range(5), average="macro")
    assert score.macro_f1 == pytest.approx(macro)
    assert score.accuracy == pytest.approx(f1_score(truth, guesses, average="micro"))
    assert summarise({0: score})["local_macro_f1"] == pytest.approx(macro)
    assert "local_macro_f1" not in summarise({0: score, 1: Score(1, 2)})
