"""The measures of a round: one class for the metrics of one computation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedray.core import Algorithm
from fedray.data.federated import DOMAIN, GLOBAL_TEST
from fedray.evaluation.answers import Answers, Floats, shares
from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.protocols import CrossEvaluated
from fedray.evaluation.splits import OWN
from fedray.storage.metric import VALIDATION, Metric


@metrics.add
class GlobalAccuracy(Measure):
    """Accuracy of the one global model over all clients' test images."""

    name = "global_model"
    metrics = (Metric("global_accuracy"),)

    @classmethod
    def applies_to(cls, method: type[Algorithm]) -> bool:
        """Return True for methods that may have one model for all clients."""
        return method.one_model

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        if not evaluated.has_global_model or not evaluated.tested:
            return {}
        return {"global_accuracy": evaluated.tested.pooled}


@metrics.add
class OwnTest(Measure):
    """Accuracy of the clients' models on their own test images, and on those of all clients.

    local_accuracy: mean over clients. local_accuracy_weighted: correct answers over images, both of
    all clients (the official FedTSP code). std: deviation over clients; worst10 and best10: means
    of the lowest and highest tenth; jain: Jain's fairness index. local_macro_f1: mean over clients
    of the F1 averaged over classes (DP2FL Table 1).

    earlier_accuracy: mean over the clients that were present before others joined. new_accuracy:
    over those that join late, also before they join. local_accuracy is the mean over all clients
    that have joined, which changes when others join; these metrics cover the same clients in every
    round (FedTSP supplementary H.2).

    global_test_accuracy: with `evaluation.global_test`, personal models on all clients' test
    images, as mean and deviation over clients (FedTSP Fig. 3).

    _top{k}: with `evaluation.top_k` (FedTSP Fig. 4: 5), mean over clients of the share of images
    whose class is among the k likeliest; among equally likely classes, the first ones count.
    """

    name = "own_test"
    metrics = (
        Metric("global_test_accuracy"),
        Metric("global_test_accuracy_std", direction=None),
        Metric("global_test_accuracy_top{k}"),
        Metric("earlier_accuracy"),
        Metric("new_accuracy"),
        Metric("local_accuracy"),
        Metric("local_accuracy_weighted"),
        Metric("local_accuracy_std", direction=None),
        Metric("local_accuracy_worst10"),
        Metric("local_accuracy_best10"),
        Metric("local_accuracy_jain", "index"),
        Metric("local_accuracy_top{k}"),
        Metric("local_macro_f1", "index"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        facts, tested = evaluated.facts, evaluated.tested
        shared, top = evaluated.on(GLOBAL_TEST), f"_top{facts.top_k}"
        values = {}
        if shared:
            values["global_test_accuracy"] = mean(shared.accuracy)
            values["global_test_accuracy_std"] = float(shared.accuracy.std())
            if facts.top_k is not None:
                values[f"global_test_accuracy{top}"] = mean(shared.top_k)
        if facts.newcomers:
            earlier = [client for client in evaluated.joined if client not in facts.newcomers]
            for name, clients in (("earlier", earlier), ("new", facts.newcomers)):
                if answers := evaluated.on(OWN, clients):
                    values[f"{name}_accuracy"] = mean(answers.accuracy)
        if tested:
            ordered, squares = np.sort(tested.accuracy), float((tested.accuracy**2).sum())
            tenth, total = max(1, round(len(tested) / 10)), tested.accuracy.sum()
            values |= {
                "local_accuracy": mean(tested.accuracy),
                "local_accuracy_weighted": tested.pooled,
                "local_accuracy_std": float(tested.accuracy.std()),
                "local_accuracy_worst10": mean(ordered[:tenth]),
                "local_accuracy_best10": mean(ordered[-tenth:]),
                "local_accuracy_jain": float(total**2 / (len(tested) * squares))
                if squares
                else 1.0,
                "local_macro_f1": mean(tested.macro_f1),
            }
            if facts.top_k is not None:
                values[f"local_accuracy{top}"] = mean(tested.top_k)
        return values


def mean(values: Floats) -> float:
    """Return the mean over clients."""
    return float(values.mean())


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
        values = {}
        for name, models in evaluated.cross_evaluations.items():
            totals = [evaluated.of_split(counts).sum(axis=(0, 2)) for counts in models]
            accuracies = [right / images for right, images, *_ in totals if images]
            if accuracies:
                values[f"{name}_accuracy"] = float(np.mean(accuracies))
        return values


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
        tested = evaluated.tested
        if not tested:
            return {}
        values = {
            f"accuracy_{name}": mean(answers.accuracy)
            for name in ("base", "novel")
            if (answers := evaluated.on(name, tested.clients))
        }
        if {"accuracy_base", "accuracy_novel"} <= values.keys():
            values["accuracy_hm"] = harmonic_mean(values["accuracy_base"], values["accuracy_novel"])
            values["accuracy_cm"] = (mean(tested.accuracy) + values["accuracy_hm"]) / 2
        return values


def harmonic_mean(base: float, novel: float) -> float:
    """Return HM = 2 B N / (B + N) of the base and novel accuracies; 0 if both are 0."""
    return 2 * base * novel / (base + novel) if base + novel else 0.0


@metrics.add
class DomainAccuracy(Measure):
    """Accuracy by domain; a domain without test images is omitted.

    accuracy_{domain}: over all images of the domain's clients. client_accuracy_{domain}: mean over
    these clients, each on its own test, and its deviation over them, which is no estimate for
    others (FedMGP Tables 11 and 12). everyone_accuracy_{domain}: with `data.every_domain`, mean
    and deviation over all clients, each on all test images of the domain. _domains: means over
    domains.
    """

    name = "domains"
    metrics = (
        Metric("accuracy_{domain}"),
        Metric("accuracy_domains"),
        Metric("client_accuracy_{domain}"),
        Metric("client_accuracy_{domain}_std", direction=None),
        Metric("client_accuracy_domains"),
        Metric("everyone_accuracy_{domain}"),
        Metric("everyone_accuracy_{domain}_std", direction=None),
        Metric("everyone_accuracy_domains"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        facts = evaluated.facts
        own = {name: evaluated.tested.of(clients) for name, clients in facts.domains.items()}
        shared = {
            name.removeprefix(DOMAIN): evaluated.on(name)
            for name in facts.splits
            if name.startswith(DOMAIN)
        }
        pooled = {domain: answers.pooled for domain, answers in own.items() if answers}
        values = over_domains("accuracy", pooled)
        for name, by_domain in (("client_accuracy", own), ("everyone_accuracy", shared)):
            accuracies = {domain: a.accuracy for domain, a in by_domain.items() if a}
            values |= over_domains(name, {domain: mean(a) for domain, a in accuracies.items()})
            values |= {f"{name}_{domain}_std": float(a.std()) for domain, a in accuracies.items()}
        return values


def over_domains(name: str, by_domain: Mapping[str, float]) -> dict[str, float]:
    """Return <name>_<domain> of each domain, and their mean <name>_domains; empty without any."""
    values = {f"{name}_{domain}": value for domain, value in by_domain.items()}
    return values and {**values, f"{name}_domains": float(np.mean(list(values.values())))}


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
        facts, tested = evaluated.facts, evaluated.tested
        if facts.majority is None or facts.dense_classes or not tested:
            return {}
        is_large = facts.majority[tested.clients]
        values = {}
        for name, part in (("accuracy_majority", is_large), ("accuracy_minority", ~is_large)):
            if images := tested.images[part].sum():
                values[name] = float(tested.right[part].sum() / images)
        return values


def majority_classes(counts: np.ndarray) -> NDArray[np.bool_]:
    """Return each client's majority classes [N, C]: more images than its mean n_i / C.

    FedGLCL Fig. 1b splits classes by a threshold that it does not state. A class without images is
    a minority class; a client with equal counts has no majority class.

    Args:
        counts: n_{i,c}, training images by client and class [N, C].
    """
    return np.asarray(counts > counts.mean(axis=1, keepdims=True))


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
        names, tested = evaluated.facts.dense_classes, evaluated.tested
        if not names or not tested:
            return {}
        dice = _dice(tested)
        values = {f"dice_{name}": float(value) for name, value in zip(names, dice, strict=True)}
        values["dice"] = _mean(dice[1:])  # without the background
        for domain, clients in evaluated.facts.domains.items():
            if of_domain := tested.of(clients):
                values[f"dice_in_{domain}"] = _mean(_dice(of_domain)[1:])
        return {name: value for name, value in values.items() if not np.isnan(value)}


def _dice(answers: Answers) -> Floats:
    """Return the mean Dice value of each class [C]; NaN for a class without pixels."""
    with np.errstate(invalid="ignore"):
        dice = 2 * answers.right / (answers.predicted + answers.images)
    return np.array([_mean(column) for column in dice.T])


def _mean(values: Floats) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else float("nan")


class WithoutTest(Measure):
    """Numbers of a round that do not depend on a test."""

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        names = [metric.name for metric in self.metrics]
        return {name: evaluated.numbers[name] for name in names if name in evaluated.numbers}


@metrics.add
class Training(WithoutTest):
    """The clients' training in the round.

    train_loss: mean loss of the last local epoch, over the clients that trained. learning_rate: the
    rate of the key `lr`, if `lr_schedule` changes it.
    """

    name = "training"
    metrics = (
        Metric("learning_rate", "number", None, None),
        Metric("train_loss", "nats", "min", "train"),
    )


@metrics.add
class Epsilon(WithoutTest):
    """Epsilon at `privacy.delta`, of the run so far and of the round (docs/privacy.md).

    epsilon assumes an attacker who does not know which clients took part,
    epsilon_known_participants one who does.
    """

    name = "epsilon"
    metrics = (
        Metric("epsilon", "number", "min", None),
        Metric("epsilon_round", "number", "min", None),
        Metric("epsilon_known_participants", "number", "min", None),
    )


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
        if evaluated.fine_tuned is None:
            return {}
        counts = evaluated.of_split(evaluated.fine_tuned)
        has_images = counts[:, 0, 1].any(axis=1)
        if not has_images.any():
            return {}
        accuracy = shares(counts[has_images])  # [K, E + 1]
        values = {"finetuned_accuracy": _mean_in_order(accuracy[:, -1])}
        on_itself = evaluated.prefix or evaluated.facts.select == "test"
        chooser = OWN if on_itself else VALIDATION + OWN
        if chooser in evaluated.facts.splits:
            choosing = evaluated.of_split(evaluated.fine_tuned, chooser)[has_images]
            if (can_choose := choosing[:, 0, 1].any(axis=1)).any():
                epochs = choosing[:, :, 0].sum(axis=2).argmax(axis=1)
                best = accuracy[np.arange(len(epochs)), np.where(can_choose, epochs, -1)]
                values["finetuned_accuracy_best"] = _mean_in_order(best)
        return values


def _mean_in_order(values: Floats) -> float:
    """Return the mean of values that are added one after the other."""
    return float(values.cumsum()[-1] / len(values))
