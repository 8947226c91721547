"""A run's models for MLflow: `mlflow.pyfunc.load_model(...).predict(images)`.

`fedray.tracking.models` names this module as what loads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedray.config import listed, read_mapping, read_plugins
from fedray.plugins import trust
from fedray.records import RunFolder
from fedray.trained.loading import open_models
from fedray.trained.model import TrainedModel


class ClientModels:
    """The models of a run behind the one method that MLflow calls.

    Args:
        folder: with the run's config.yaml and its models.
    """

    def __init__(self, folder: Path) -> None:
        self.models = open_models(folder)
        self._opened: dict[int, TrainedModel] = {}

    def predict(self, images: Any, params: Mapping[str, Any] | None = None) -> np.ndarray:
        """Return the names of the likeliest classes [n]; of dense models of every pixel [n, H, W].

        Args:
            images: uint8 `[n, channels, H, W]`, alone or under "images".
            params: `client`: whose model answers; negative: the one that all clients share.

        Raises:
            UserError: as `TrainedModels.model` and `TrainedModel.predict`.
        """
        given = images["images"] if isinstance(images, Mapping) else images
        client = int((params or {}).get("client", -1))
        if client not in self._opened:
            self._opened[client] = self.models.model(None if client < 0 else client)
        found = self._opened[client].predict(np.asarray(given))
        return np.array(found.names).reshape(tuple(found.labels.shape))


def _load_pyfunc(folder: str) -> ClientModels:
    """Open the models for MLflow, from the folder that was logged.

    Who loads a model from MLflow runs its code, so its plug-ins run without a question.
    """
    trust(read_plugins(listed(read_mapping(RunFolder(Path(folder)).config))))
    return ClientModels(Path(folder))
