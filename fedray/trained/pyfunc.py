"""The MLflow loader of a run's models, for `mlflow.pyfunc.load_model(...).predict(images)`.

`fedray.tracking.models` registers this module as the loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedray.config import listed, read_plugins
from fedray.plugins import trust
from fedray.run_config import read_config
from fedray.trained.loading import open_models
from fedray.trained.model import TrainedModel


class ClientModels:
    """The models of a run with MLflow's interface.

    Args:
        folder: a folder with the run's config.yaml and models.
    """

    def __init__(self, folder: Path) -> None:
        self.models = open_models(folder)
        self._opened: dict[int, TrainedModel] = {}

    def predict(self, images: Any, params: Mapping[str, Any] | None = None) -> np.ndarray:
        """Return the names of the most likely classes [n], or [n, H, W] from dense models.

        Args:
            images: uint8 `[n, channels, H, W]`, or a mapping with such an array under "images".
            params: `client` is the id of the client whose model predicts; negative: the model that
                all clients share.

        Raises:
            UserError: as `TrainedModels.model` and `TrainedModel.predict`.
        """
        batch = images["images"] if isinstance(images, Mapping) else images
        client = int((params or {}).get("client", -1))
        if client not in self._opened:
            self._opened[client] = self.models.model(None if client < 0 else client)
        predictions = self._opened[client].predict(np.asarray(batch))
        return np.array(predictions.names).reshape(tuple(predictions.labels.shape))


def _load_pyfunc(folder: str) -> ClientModels:
    """Load the models for MLflow from the logged folder.

    Loading a model from MLflow runs its code anyway, so its plug-ins are trusted.
    """
    trust(read_plugins(listed(read_config(Path(folder)))))
    return ClientModels(Path(folder))
