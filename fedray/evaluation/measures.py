"""The measures of a round: one class for the metrics of one computation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedray.core import Algorithm
from fedray.data.federated import DOMAIN, GLOBAL_TEST
from fedray.evaluation.answers import Answers, Floats, shares
from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.protocols import CrossEvaluated, HasGlobalModel
from fedray.evaluation.splits import OWN
from fedray.storage.metric import VALIDATION, Metric


@metrics.add
class OwnTest(Measure):
    """Accuracy on the clients' own test splits.

    local_accuracy: mean over clients. local_accuracy_weighted: correct answers over images, both of
    all clients (the official FedTSP code). std: deviation over clients; worst10 and best10: means
    of the lowest and highest tenth; jain: Jain's fairness index. local_macro_f1: mean over clients
    of the F1 averaged over classes (DP2FL Table 1). With `evaluation.top_k` (FedTSP Fig. 4: 5),
    local_accuracy_top{k}: mean over clients of the share of images whose class is among the k
    likeliest; among equally likely classes, the first ones count.
    """

    name = "own_test"
    metrics = (
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
        tested = evaluated.tested
        if not tested:
            return {}
        accuracy = tested.accuracy
        tenth = max(1, round(len(accuracy) / 10))
        ordered = np.sort(accuracy)
        squares = float((accuracy**2).sum())
        jain = float(accuracy.sum() ** 2 / (len(accuracy) * squares)) if squares else 1.0
        return {
            "local_accuracy": float(accuracy.mean()),
            "local_accuracy_weighted": tested.pooled,
            "local_accuracy_std": float(accuracy.std()),
            "local_accuracy_worst10": float(ordered[:tenth].mean()),
            "local_accuracy_best10": float(ordered[-tenth:].mean()),
            "local_accuracy_jain": jain,
            "local_macro_f1": float(tested.macro_f1.mean()),
            **top_share("local_accuracy", tested, evaluated.facts.top_k),
        }


def top_share(name: str, answers: Answers, k: int | None) -> dict[str, float]:
    """Return <name>_top<k>, the mean over models of the share; empty if it was not counted."""
    if not answers or k is None:
        return {}
    return {f"{name}_top{k}": float(answers.top_k.mean())}


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
        answers = evaluated.on(GLOBAL_TEST)
        if not answers:
            return {}
        accuracy = answers.accuracy
        return {
            "global_test_accuracy": float(accuracy.mean()),
            "global_test_accuracy_std": float(accuracy.std()),
            **top_share("global_test_accuracy", answers, evaluated.facts.top_k),
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
        return {"global_accuracy": evaluated.tested.pooled}


@metrics.add
class Joining(Measure):
    """Accuracy of the clients that join late, and of the others, on their own test splits.

    new_accuracy: of those that join late, also before they join. earlier_accuracy: of the clients
    that were present before others joined. local_accuracy is the mean over all clients that have
    joined, which changes when others join; these metrics cover the same clients in every round
    (FedTSP supplementary H.2).
    """

    name = "joining"
    metrics = (Metric("earlier_accuracy"), Metric("new_accuracy"))

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        if not evaluated.newcomers:
            return {}
        earlier = [client for client in evaluated.joined if client not in evaluated.newcomers]
        return {
            **mean_accuracy("earlier", evaluated.on(OWN, earlier)),
            **mean_accuracy("new", evaluated.on(OWN, evaluated.newcomers)),
        }


def mean_accuracy(name: str, answers: Answers) -> dict[str, float]:
    """Return <name>_accuracy, the mean over clients; empty without clients."""
    return {f"{name}_accuracy": float(answers.accuracy.mean())} if answers else {}


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
            f"accuracy_{name}": float(answers.accuracy.mean())
            for name in ("base", "novel")
            if (answers := evaluated.on(name, tested.clients))
        }
        if {"accuracy_base", "accuracy_novel"} <= values.keys():
            local = float(tested.accuracy.mean())
            values["accuracy_hm"] = harmonic_mean(values["accuracy_base"], values["accuracy_novel"])
            values["accuracy_cm"] = (local + values["accuracy_hm"]) / 2
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
        domains, sets = evaluated.facts.domains, evaluated.facts.splits
        own = {name: evaluated.tested.of(clients) for name, clients in domains.items()}
        shared = {n.removeprefix(DOMAIN): evaluated.on(n) for n in sets if n.startswith(DOMAIN)}
        pooled = {f"accuracy_{name}": tested.pooled for name, tested in own.items() if tested}
        if pooled:
            pooled["accuracy_domains"] = float(np.mean(list(pooled.values())))
        return {
            **pooled,
            **mean_and_spread("client_accuracy", own),
            **mean_and_spread("everyone_accuracy", shared),
        }


def mean_and_spread(name: str, by_domain: Mapping[str, Answers]) -> dict[str, float]:
    """Return mean and deviation over clients for each domain, and the mean over domains.

    The metrics are <name>_<domain>, <name>_<domain>_std and <name>_domains.
    """
    accuracies = {domain: answers.accuracy for domain, answers in by_domain.items() if answers}
    means = {f"{name}_{domain}": float(values.mean()) for domain, values in accuracies.items()}
    if means:
        means[f"{name}_domains"] = float(np.mean(list(means.values())))
    spreads = {f"{name}_{domain}_std": float(v.std()) for domain, v in accuracies.items()}
    return means | spreads


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
        parts = {"accuracy_majority": is_large, "accuracy_minority": ~is_large}
        counts = {
            name: (tested.right[of_part].sum(), tested.images[of_part].sum())
            for name, of_part in parts.items()
        }
        return {name: float(right / images) for name, (right, images) in counts.items() if images}


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
        means = _dice(tested)
        values = {f"dice_{name}": float(mean) for name, mean in zip(names, means, strict=True)}
        values["dice"] = _foreground(means)
        for domain, clients in evaluated.facts.domains.items():
            if of_domain := tested.of(clients):
                values[f"dice_in_{domain}"] = _foreground(_dice(of_domain))
        return {name: value for name, value in values.items() if not np.isnan(value)}


def _dice(answers: Answers) -> Floats:
    """Return the mean Dice value of each class [C]; NaN for a class without pixels."""
    with np.errstate(invalid="ignore"):
        dice = 2 * answers.right / (answers.predicted + answers.images)
    return np.array([_mean(column) for column in dice.T])


def _foreground(by_class: Floats) -> float:
    """Return the mean without class 0, the background."""
    return _mean(by_class[1:])


def _mean(values: Floats) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else float("nan")


@metrics.add
class Training(Measure):
    """The clients' training in the round.

    train_loss: mean loss of the last local epoch, over the clients that trained. learning_rate: the
    rate of the key `lr`, if `lr_schedule` changes it.
    """

    name = "training"
    metrics = (
        Metric("learning_rate", "number", None, None),
        Metric("train_loss", "nats", "min", "train"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        losses, lr = evaluated.train_losses, evaluated.lr
        loss = {"train_loss": sum(losses) / len(losses)} if losses else {}
        return loss if lr is None else {"learning_rate": lr, **loss}


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
        if evaluated.select == "test":
            values["finetuned_accuracy_best"] = _mean_in_order(accuracy.max(axis=1))
        elif VALIDATION + OWN in evaluated.facts.splits:
            validation = evaluated.of_split(evaluated.fine_tuned, VALIDATION + OWN)[has_images]
            validates = validation[:, 0, 1].any(axis=1)
            best = np.where(validates, validation[:, :, 0].sum(axis=2).argmax(axis=1), -1)
            if validates.any():
                best_accuracy = accuracy[np.arange(len(best)), best]
                values["finetuned_accuracy_best"] = _mean_in_order(best_accuracy)
        return values


def _mean_in_order(values: Floats) -> float:
    """Return the mean of values that are added one after the other."""
    return float(values.cumsum()[-1] / len(values))


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
