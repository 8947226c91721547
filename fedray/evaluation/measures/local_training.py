"""What local training and fine-tuning reach."""

from __future__ import annotations

from collections.abc import Sequence

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.score import Score
from fedray.records import Metric, Select


@metrics.add
class TrainLoss(Measure):
    """Mean loss of the last local epoch, over the clients that trained in the round."""

    name = "train_loss"
    metrics = (Metric("train_loss", "nats", "min", "train"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """The losses are of whatever the method minimises."""
        losses = evaluated.train_losses
        return {"train_loss": sum(losses) / len(losses)} if losses else {}


@metrics.add
class ScheduledLearningRate(Measure):
    """The clients' learning rate in the round, where `lr_schedule` changes it."""

    name = "learning_rate"
    metrics = (Metric("learning_rate", "number", None, None),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """As the schedule gives it; of a method with rates of its own, the key `lr`'s."""
        return {} if evaluated.lr is None else {"learning_rate": evaluated.lr}


@metrics.add
class FineTuned(Measure):
    """Accuracy after fine-tuning at the end, as means over clients (FedTSP supplementary C.4).

    finetuned_accuracy: after the last epoch; finetuned_accuracy_best: after the epoch, or before
    the first one, that is the best of each client on its validation images, or on its test with
    report.select=test (the paper's). Without either there is no best one.
    """

    name = "fine_tuned"
    metrics = (Metric("finetuned_accuracy"), Metric("finetuned_accuracy_best"))

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Over the clients with test images."""
        tested = [scores for scores in evaluated.fine_tuned if scores[0].total]
        if not tested:
            return {}
        last = [scores[-1].accuracy for scores in tested]
        found = {"finetuned_accuracy": sum(last) / len(last)}
        if evaluated.select == "test" or any(map(_validates, tested)):
            best = [_best(scores, evaluated.select).accuracy for scores in tested]
            found["finetuned_accuracy_best"] = sum(best) / len(best)
        return found


def _validates(scores: Sequence[Score]) -> bool:
    """Whether a client has validation images."""
    return scores[0].validation is not None and scores[0].validation.total > 0


def _best(scores: Sequence[Score], select: Select) -> Score:
    """A client's score after the best epoch; the last one where it has nothing to choose by."""
    if select == "test":
        return max(scores, key=lambda score: score.accuracy)
    if not _validates(scores):
        return scores[-1]
    held = [score.validation.accuracy for score in scores if score.validation is not None]
    return scores[held.index(max(held))]
