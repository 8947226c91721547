"""The measures of a round: one class for the metrics of one computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.core import Algorithm
from fedray.data.federated import DOMAIN, GLOBAL_TEST
from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.protocols import CrossEvaluated, HasGlobalModel
from fedray.evaluation.score import Score, pooled
from fedray.storage.metric import Metric, Select

Floats = NDArray[np.float64]


@metrics.add
class OwnTest(Measure):
    """Accuracy on the clients' own test splits.

    local_accuracy: mean over clients. local_accuracy_weighted: correct answers over images, both of
    all clients (the official FedTSP code). std: deviation over clients; worst10 and best10: means
    of the lowest and highest tenth; jain: Jain's fairness index.
    """

    name = "own_test"
    metrics = (
        Metric("local_accuracy"),
        Metric("local_accuracy_weighted"),
        Metric("local_accuracy_std", direction=None),
        Metric("local_accuracy_worst10"),
        Metric("local_accuracy_best10"),
        Metric("local_accuracy_jain", "index"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        scores = evaluated.tested
        if not scores:
            return {}
        accuracy = np.array([score.accuracy for score in scores.values()])
        tenth = max(1, round(len(accuracy) / 10))
        ordered = np.sort(accuracy)
        squares = float((accuracy**2).sum())
        jain = float(accuracy.sum() ** 2 / (len(accuracy) * squares)) if squares else 1.0
        return {
            "local_accuracy": float(accuracy.mean()),
            "local_accuracy_weighted": pooled(list(scores.values())),
            "local_accuracy_std": float(accuracy.std()),
            "local_accuracy_worst10": float(ordered[:tenth].mean()),
            "local_accuracy_best10": float(ordered[-tenth:].mean()),
            "local_accuracy_jain": jain,
        }


@metrics.add
class MacroF1(Measure):
    """Mean over clients of the F1 averaged over classes (DP2FL Table 1)."""

    name = "macro_f1"
    metrics = (Metric("local_macro_f1", "index"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        scores = evaluated.tested.values()
        if not scores or not all(score.predicted for score in scores):
            return {}
        return {"local_macro_f1": float(np.mean([score.macro_f1 for score in scores]))}


@metrics.add
class TopKAccuracy(Measure):
    """Share of own test images whose class is among the k likeliest, as a mean over clients.

    With `evaluation.top_k` (FedTSP Fig. 4: 5). Among equally likely classes, the first ones count.
    """

    name = "top_k"
    metrics = (Metric("local_accuracy_top{k}"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        return top_share("local_accuracy", list(evaluated.tested.values()))


def top_share(name: str, scores: Sequence[Score]) -> dict[str, float]:
    """Return <name>_top<k>, the mean over scores of the share; empty if it was not counted."""
    counts = [(score.top, score.total) for score in scores if score.top is not None]
    shares = [top.correct / total for top, total in counts]
    return {f"{name}_top{counts[0][0].k}": float(np.mean(shares))} if counts else {}


@metrics.add
class GlobalTest(Measure):
    """Personal models on all clients' test images, as mean and deviation over clients.

    With `evaluation.global_test` (FedTSP Fig. 3). With `evaluation.top_k`, too,
    global_test_accuracy_top{k} is the share of images whose class is among the k likeliest.
    """

    name = "global_test"
    metrics = (
        Metric("global_test_accuracy"),
        Metric("global_test_accuracy_std", direction=None),
        Metric("global_test_accuracy_top{k}"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        scores = [
            score.eval_sets[GLOBAL_TEST]
            for _, score in sorted(evaluated.scores.items())
            if GLOBAL_TEST in score.eval_sets
        ]
        if not scores:
            return {}
        accuracy = np.array([score.accuracy for score in scores])
        return {
            "global_test_accuracy": float(accuracy.mean()),
            "global_test_accuracy_std": float(accuracy.std()),
            **top_share("global_test_accuracy", scores),
        }


@metrics.add
class GlobalAccuracy(Measure):
    """Accuracy of the one global model over all clients' test images."""

    name = "global_model"
    metrics = (Metric("global_accuracy"),)

    @classmethod
    def applies_to(cls, method: type[Algorithm]) -> bool:
        """Return True for methods that may have one model for all clients."""
        return issubclass(method, HasGlobalModel) and method.one_model

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        if not evaluated.has_global_model or not evaluated.tested:
            return {}
        return {"global_accuracy": pooled(list(evaluated.tested.values()))}


@metrics.add
class Newcomers(Measure):
    """Accuracy of the clients that join late, on their own test splits, also before they join."""

    name = "newcomers"
    metrics = (Metric("new_accuracy"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        return mean_over_models("new", [[score] for score in evaluated.newcomers.values()])


@metrics.add
class EarlierClients(Measure):
    """Accuracy of the clients that were present before others joined, on their own test splits.

    Only if clients join late. local_accuracy is the mean over all clients that have joined, which
    changes when others join; this metric covers the same clients in every round (FedTSP
    supplementary H.2).
    """

    name = "earlier_clients"
    metrics = (Metric("earlier_accuracy"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        if not evaluated.newcomers:
            return {}
        scores = {
            client: score
            for client, score in evaluated.tested.items()
            if client not in evaluated.newcomers
        }
        return mean_over_models("earlier", [[score] for score in scores.values()])


@metrics.add
class CrossEvaluations(Measure):
    """Accuracy of models that a method tests elsewhere than where they were trained.

    <name>_accuracy: mean over these models of the accuracy on all images that each was tested on
    (DP2FL Tables 2 to 4: global, others, union).
    """

    name = "cross_evaluations"
    metrics = (Metric("{model}_accuracy"),)

    @classmethod
    def applies_to(cls, method: type[Algorithm]) -> bool:
        return issubclass(method, CrossEvaluated)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, models in evaluated.cross_evaluations.items():
            values |= mean_over_models(name, models)
        return values


def mean_over_models(name: str, models: Sequence[Sequence[Score]]) -> dict[str, float]:
    """Return <name>_accuracy: the mean over models of the accuracy on all images of each.

    Args:
        name: the prefix of the metric.
        models: for each model, its scores on one or several clients' test splits.

    Returns:
        One metric; empty if no model was tested on an image.
    """
    tested = [scores for scores in models if any(score.total for score in scores)]
    if not tested:
        return {}
    return {f"{name}_accuracy": float(np.mean([pooled(scores) for scores in tested]))}


@metrics.add
class BaseToNovel(Measure):
    """Base and novel classes: means over clients, HM and CM (FedMGP section 5).

    accuracy_hm: the harmonic mean of both; accuracy_cm: the mean of local accuracy and HM. Novel
    classes have no validation images, because no client trains on them.
    """

    name = "base_to_novel"
    metrics = (
        Metric("accuracy_base"),
        Metric("accuracy_novel"),
        Metric("accuracy_hm"),
        Metric("accuracy_cm"),
    )
    only_on_test = ("accuracy_novel", "accuracy_hm", "accuracy_cm")

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        scores = list(evaluated.tested.values())
        if not scores:
            return {}
        values = {
            f"accuracy_{name}": float(np.mean([score.eval_sets[name].accuracy for score in scores]))
            for name in ("base", "novel")
            if name in scores[0].eval_sets
        }
        if {"accuracy_base", "accuracy_novel"} <= values.keys():
            local = float(np.array([score.accuracy for score in scores]).mean())
            values["accuracy_hm"] = harmonic_mean(values["accuracy_base"], values["accuracy_novel"])
            values["accuracy_cm"] = (local + values["accuracy_hm"]) / 2
        return values


def harmonic_mean(base: float, novel: float) -> float:
    """Return HM = 2 B N / (B + N) of the base and novel accuracies; 0 if both are 0."""
    return 2 * base * novel / (base + novel) if base + novel else 0.0


@metrics.add
class DomainAccuracy(Measure):
    """Accuracy over all images of each domain's clients, and the mean over domains.

    A domain without test images is omitted.
    """

    name = "domains"
    metrics = (Metric("accuracy_{domain}"), Metric("accuracy_domains"))

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        scores = evaluated.tested
        by_domain = {}
        for name, clients in evaluated.facts.domains.items():
            tested = [scores[client] for client in clients if client in scores]
            if tested:
                by_domain[f"accuracy_{name}"] = pooled(tested)
        if by_domain:
            by_domain["accuracy_domains"] = float(np.mean(list(by_domain.values())))
        return by_domain


@metrics.add
class DomainClientAccuracy(Measure):
    """Accuracy of each domain's clients on their own tests, and its deviation over these clients.

    FedMGP's Tables 11 and 12 print this mean and deviation. Here every client counts the same,
    while `domains` pools the images. The deviation describes these clients; it is not an estimate
    for others. client_accuracy_domains: the mean over domains. A domain without test images is
    omitted.
    """

    name = "domain_clients"
    metrics = (
        Metric("client_accuracy_{domain}"),
        Metric("client_accuracy_{domain}_std", direction=None),
        Metric("client_accuracy_domains"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        scores = evaluated.tested
        by_domain = {
            name: [scores[client].accuracy for client in clients if client in scores]
            for name, clients in evaluated.facts.domains.items()
        }
        return mean_and_spread("client_accuracy", by_domain)


@metrics.add
class EveryDomain(Measure):
    """Accuracy of every client's model on all test images of each domain (`data.every_domain`).

    Mean and deviation over all clients, and the mean over domains.
    """

    name = "every_domain"
    metrics = (
        Metric("everyone_accuracy_{domain}"),
        Metric("everyone_accuracy_{domain}_std", direction=None),
        Metric("everyone_accuracy_domains"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        by_domain: dict[str, list[float]] = {}
        for _, score in sorted(evaluated.scores.items()):
            for name, shared in score.eval_sets.items():
                if name.startswith(DOMAIN):
                    by_domain.setdefault(name.removeprefix(DOMAIN), []).append(shared.accuracy)
        return mean_and_spread("everyone_accuracy", by_domain)


def mean_and_spread(name: str, by_domain: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return mean and deviation over clients for each domain, and the mean over domains.

    The metrics are <name>_<domain>, <name>_<domain>_std and <name>_domains.
    """
    metrics_by_name = {
        f"{name}_{domain}": float(np.mean(values)) for domain, values in by_domain.items() if values
    }
    if metrics_by_name:
        metrics_by_name[f"{name}_domains"] = float(np.mean(list(metrics_by_name.values())))
    spreads = {domain: np.std(values) for domain, values in by_domain.items() if values}
    return metrics_by_name | {f"{name}_{d}_std": float(std) for d, std in spreads.items()}


@metrics.add
class ClassSizes(Measure):
    """Accuracy on each client's majority and minority classes, of the model that it is tested with.

    Summed over all clients' own tests, because a client may have few images of its minority
    classes. FedGLCL's Fig. 1b tests local models on all clients' test images, after local training:
    `fedray analyse local_models`. Not for dense prediction, where the background is no majority
    class.
    """

    name = "class_sizes"
    metrics = (Metric("accuracy_majority"), Metric("accuracy_minority"))

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        majority = evaluated.facts.majority
        if not majority or evaluated.facts.dense_classes:
            return {}
        counts = {"accuracy_majority": [0, 0], "accuracy_minority": [0, 0]}
        for client, score in evaluated.tested.items():
            for label, (correct, images) in enumerate(score.classes):
                is_large = label in majority[client]
                part = counts["accuracy_majority" if is_large else "accuracy_minority"]
                part[0] += correct
                part[1] += images
        return {name: correct / images for name, (correct, images) in counts.items() if images}


def majority_classes(counts: np.ndarray) -> list[frozenset[int]]:
    """Return each client's majority classes, those with more images than its mean n_i / C.

    FedGLCL Fig. 1b splits classes by a threshold that it does not state. A class without images is
    a minority class; a client with equal counts has no majority class.

    Args:
        counts: n_{i,c}, training images by client and class [N, C].
    """
    is_majority = counts > counts.mean(axis=1, keepdims=True)
    return [frozenset(np.flatnonzero(row).tolist()) for row in is_majority]


@metrics.add
class Dice(Measure):
    """Dice 2 |predicted ∩ true| / (|predicted| + |true|) over each client's test pixels.

    dice_<class>: mean over the clients where the class is predicted or true anywhere; omitted if
    there are none. dice: mean of these, without the background. dice_in_<domain>: the same as dice,
    over a domain's clients. Only for dense prediction; class 0 is the background.
    """

    name = "dice"
    metrics = (
        Metric("dice", "index"),
        Metric("dice_{class}", "index"),
        Metric("dice_in_{domain}", "index"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        names = evaluated.facts.dense_classes
        if not names or not evaluated.tested:
            return {}
        by_client = {client: _dice(score) for client, score in evaluated.tested.items()}
        means = _mean_over(list(by_client.values()))
        values = {f"dice_{name}": float(mean) for name, mean in zip(names, means, strict=True)}
        values["dice"] = _foreground(means)
        for domain, clients in evaluated.facts.domains.items():
            tested = [by_client[client] for client in clients if client in by_client]
            if tested:
                values[f"dice_in_{domain}"] = _foreground(_mean_over(tested))
        return {name: value for name, value in values.items() if not np.isnan(value)}


def _dice(score: Score) -> Floats:
    """Return the Dice value of each class [C]; NaN for a class without pixels."""
    correct, true = np.array(score.classes).T
    predicted = np.array(score.predicted)
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * correct / (predicted + true))


def _mean_over(rows: Sequence[Floats]) -> Floats:
    """Return the mean of rows [C], ignoring NaN; NaN if every row has NaN."""
    return np.array([_mean(column) for column in np.stack(rows, 1)])


def _foreground(by_class: Floats) -> float:
    """Return the mean without class 0, the background."""
    return _mean(by_class[1:])


def _mean(values: Floats) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else float("nan")


@metrics.add
class TrainLoss(Measure):
    """Mean loss of the last local epoch, over the clients that trained in the round."""

    name = "train_loss"
    metrics = (Metric("train_loss", "nats", "min", "train"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        losses = evaluated.train_losses
        return {"train_loss": sum(losses) / len(losses)} if losses else {}


@metrics.add
class ScheduledLearningRate(Measure):
    """The clients' learning rate in the round, if `lr_schedule` changes it.

    For a method with several learning rates, this is the rate of the key `lr`.
    """

    name = "learning_rate"
    metrics = (Metric("learning_rate", "number", None, None),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        return {} if evaluated.lr is None else {"learning_rate": evaluated.lr}


@metrics.add
class FineTunedAccuracy(Measure):
    """Accuracy after fine-tuning at the end, as means over clients (FedTSP supplementary C.4).

    finetuned_accuracy: after the last epoch. finetuned_accuracy_best: after each client's best
    epoch (or before the first one), chosen on its validation images, or on its test images with
    report.select=test, as in the paper; omitted if there is neither.
    """

    name = "fine_tuned"
    metrics = (Metric("finetuned_accuracy"), Metric("finetuned_accuracy_best"))

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        tested = [scores for scores in evaluated.fine_tuned if scores[0].total]
        if not tested:
            return {}
        last = [scores[-1].accuracy for scores in tested]
        values = {"finetuned_accuracy": sum(last) / len(last)}
        if evaluated.select == "test" or any(map(_validates, tested)):
            best = [_best(scores, evaluated.select).accuracy for scores in tested]
            values["finetuned_accuracy_best"] = sum(best) / len(best)
        return values


def _validates(scores: Sequence[Score]) -> bool:
    """Return True if the client has validation images."""
    return scores[0].validation is not None and scores[0].validation.total > 0


def _best(scores: Sequence[Score], select: Select) -> Score:
    """Return a client's score after its best epoch, or after the last if no images select one."""
    if select == "test":
        return max(scores, key=lambda score: score.accuracy)
    if not _validates(scores):
        return scores[-1]
    accuracies = [score.validation.accuracy for score in scores if score.validation is not None]
    return scores[accuracies.index(max(accuracies))]


@metrics.add
class Epsilon(Measure):
    """Epsilon at `privacy.delta`, of the run so far and of the round (docs/privacy.md).

    epsilon assumes an attacker who does not know which clients took part,
    epsilon_known_participants one who does.
    """

    name = "epsilon"
    metrics = tuple(
        Metric(name, "number", "min", None)
        for name in ("epsilon", "epsilon_round", "epsilon_known_participants")
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        if evaluated.spent is None:
            return {}
        total, of_round, if_known = evaluated.spent
        return {"epsilon": total, "epsilon_round": of_round, "epsilon_known_participants": if_known}
