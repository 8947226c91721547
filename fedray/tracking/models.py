"""The models of a run as an MLflow model with a signature (`keep.log=true`).

`mlflow.pyfunc.load_model` loads them with `fedray.trained.pyfunc`.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedray.storage.run import Run
from fedray.storage.run_folder import RunFolder

LOADER = "fedray.trained.pyfunc"
NAME = "model"
EVERYBODY = -1
"""Default of the parameter `client`: the shared model; an error if every client has its own."""


def models_of(folder: Path, run: Run) -> Path | None:
    """Return the folder of a run whose models are logged: those of the best round, or of the last.

    None if the run keeps no models, or does not log them (`keep.log`).
    """
    from fedray.storage.kept_models import kept_rounds  # imports torch

    if not run.info.config.get("keep", {}).get("log"):
        return None
    return folder if kept_rounds(folder) else None


def save_models(folder: Path, temporary: Path) -> Path:
    """Export the models of a run as an MLflow model, with the config that loading needs."""
    import mlflow.pyfunc

    from fedray.storage.kept_models import KeptModels, kept_rounds

    data, models = temporary / "run", KeptModels(folder, next(iter(kept_rounds(folder))))
    models.export(data)
    shutil.copy(RunFolder(folder).config, data)
    place = temporary / "saved"
    mlflow.pyfunc.save_model(
        place,
        loader_module=LOADER,
        data_path=str(data),
        signature=_signature(models.facts.image),
        pip_requirements=[f"{name}=={version(name)}" for name in ("fedray", "torch", "mlflow")],
    )
    return place


def _signature(image: tuple[int, int, int]) -> Any:
    """Return the signature: images [n, ...] in, class names [n] out (dense models: [n, H, W])."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import ParamSchema, ParamSpec, Schema, TensorSpec

    images = TensorSpec(np.dtype(np.uint8), (-1, *image), "images")
    classes = TensorSpec(np.dtype(str), (-1,), "classes")
    params = ParamSchema([ParamSpec("client", "long", EVERYBODY)])
    return ModelSignature(Schema([images]), Schema([classes]), params)
