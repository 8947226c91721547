"""What local training and fine-tuning reach."""

from __future__ import annotations

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.records import Metric


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

    finetuned_accuracy: after the last epoch; finetuned_accuracy_best: the highest of all epochs,
    which looks at the test.
    """

    name = "fine_tuned"
    metrics = (Metric("finetuned_accuracy"), Metric("finetuned_accuracy_best"))

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Over the clients with test images."""
        tested = [scores for scores in evaluated.fine_tuned if scores[0].total]
        if not tested:
            return {}
        last = [scores[-1].accuracy for scores in tested]
        best = [max(score.accuracy for score in scores) for scores in tested]
        return {
            "finetuned_accuracy": sum(last) / len(last),
            "finetuned_accuracy_best": sum(best) / len(best),
        }
