"""`Result`: the rounds, metrics and models of a run, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedray.config import Tree
from fedray.config.plugins import named_plugins
from fedray.storage.metric import HEADLINE
from fedray.storage.run import Round, Run
from fedray.storage.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas

    from fedray.trained import Predictions, TrainedModel, TrainedModels
    from fedray.trained.images import Images


class Result:
    """The results of a run.

    Args:
        folder: the folder of the run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def run(self) -> Run:
        """Return the complete record of the run."""
        return RunFolder(self.folder).read()

    @property
    def config(self) -> Tree:
        """Return all settings of the experiment."""
        return dict(self.run.info.config)

    @property
    def rounds(self) -> Sequence[Round]:
        """Return the record of every round, round 0 first."""
        return self.run.rounds

    @property
    def is_finished(self) -> bool:
        """Return True if no round is left."""
        return self.run.is_finished

    @property
    def best(self) -> Round | None:
        """Return the best round on the images of `report.select`; None without such images."""
        return self.run.best

    @property
    def final(self) -> Round | None:
        """Return the last evaluated round."""
        return self.run.final

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the last evaluated round by name (`fedray ls metrics`)."""
        return {} if self.final is None else dict(self.final.metrics)

    @property
    def per_client(self) -> Mapping[int, float]:
        """Return each client's test accuracy in the last evaluated round, by client id."""
        return {} if self.final is None else dict(self.final.per_client)

    @property
    def class_names(self) -> Sequence[str]:
        """Return the names of the classes, in the order of their labels."""
        return RunFolder(self.folder).class_names()

    def curve(self, metric: str = HEADLINE) -> dict[int, float]:
        """Return a metric by round, for the rounds in which it was measured."""
        return self.run.curve(metric)

    def to_pandas(self, of: Literal["rounds", "clients"] = "rounds") -> pandas.DataFrame:
        """Return the results as a pandas DataFrame.

        Args:
            of: "rounds": one row per round with metrics, traffic in bytes, and seconds; "clients":
                one row per evaluated round and client with the accuracy.
        """
        import pandas

        if of == "clients":
            cells = [
                (done.round, client, accuracy)
                for done in self.rounds
                for client, accuracy in done.per_client.items()
            ]
            clients = pandas.DataFrame(cells, columns=["round", "client", "accuracy"])
            return clients.set_index(["round", "client"])
        rows = {
            done.round: {
                **done.metrics,
                "up_bytes": done.up.total_bytes,
                "down_bytes": done.down.total_bytes,
                "seconds": done.seconds,
            }
            for done in self.rounds
        }
        return pandas.DataFrame.from_dict(rows, "index").rename_axis("round")

    def models(
        self, which: Literal["best", "last"] | None = None, *, device: str = "cpu"
    ) -> TrainedModels:
        """Return the saved models of the run; see `fedray.trained.open_models`."""
        from fedray.trained import open_models

        return open_models(self.folder, which, device)

    def model(
        self,
        client: int | None = None,
        which: Literal["best", "last"] | None = None,
        *,
        device: str = "cpu",
    ) -> TrainedModel:
        """Return the model of one client, or the model that all clients share.

        Args:
            client: the id of the client; None: the shared model.
            which: the model of the "best" or the "last" round; None: the best, or the last if no
                best round was selected.
            device: a PyTorch device for the model.

        Raises:
            UserError: if no models were saved, or `client` is None and clients have their own
                models.
        """
        return self.models(which, device=device).model(client)

    def predict(self, images: Images, client: int | None = None) -> Predictions:
        """Classify images with `model(client)`; see `TrainedModel.predict`."""
        return self.model(client).predict(images)

    def __repr__(self) -> str:
        run = self.run
        last = "" if run.final is None else f", local accuracy {run.final.local_accuracy:.4f}"
        return (
            f"<Result {run.info.name}: {run.info.algorithm}, round {run.done} of "
            f"{run.info.planned}{last}, in {self.folder}>"
        )


def load(folder: str | Path, *, plugins: Sequence[str | Path] = ()) -> Result:
    """Return the results of a run, finished or not, from its folder.

    Args:
        folder: the run's folder.
        plugins: your copies of the plug-ins that the run used, for its models.

    Raises:
        UserError: if the folder contains no run, or a file is damaged.
    """
    named_plugins(map(str, plugins))
    result = Result(Path(folder).expanduser().resolve())
    _ = result.run  # raise now if a file is damaged
    return result
