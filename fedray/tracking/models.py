"""A run's models as MLflow keeps them: with a signature, loadable by `mlflow.pyfunc.load_model`.

Where `keep.log=true`; what MLflow then calls is `fedray.trained.pyfunc`.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedray.records import RunFolder
from fedray.tracking.store import OpenRun, Store

LOADER = "fedray.trained.pyfunc"
NAME = "model"
EVERYBODY = -1
"""In place of a client: the model that all of them share; where each has its own, it is refused."""


def add_models(store: Store, run: OpenRun, folder: Path, below: str | None = None) -> bool:
    """Log the models that a run has kept, if `keep.log` asks for it and they are not there yet.

    Args:
        store: of the run.
        run: the run.
        folder: its folder.
        below: where to put them among the run's artifacts.
    """
    kept = models_of(folder)
    if kept is None:
        return False
    name = f"{below}/{NAME}" if below else NAME
    with TemporaryDirectory(prefix="fedray-model-") as temporary:
        return store.add_folder(run, name, lambda: _saved(folder, kept, Path(temporary)))


def models_of(folder: Path) -> Path | None:
    """The models of a run that are to be logged: of the best round, or of the last."""
    config = RunFolder(folder).read().info.config
    if not config.get("keep", {}).get("log"):
        return None
    places = (folder / "models" / which for which in ("best", "last"))
    return next((place for place in places if place.is_dir()), None)


def _saved(folder: Path, kept: Path, temporary: Path) -> Path:
    """A folder as MLflow wants it, with what loads the models: no more of the run."""
    import mlflow.pyfunc

    from fedray.saved_models import SavedModels

    data = temporary / "run"
    shutil.copytree(kept, data / "models" / kept.name)
    shutil.copy(RunFolder(folder).config, data)
    place = temporary / "saved"
    mlflow.pyfunc.save_model(
        place,
        loader_module=LOADER,
        data_path=str(data),
        signature=_signature(SavedModels(kept).facts.image),
        pip_requirements=[f"{name}=={version(name)}" for name in ("fedray", "torch", "mlflow")],
    )
    return place


def _signature(image: tuple[int, int, int]) -> Any:
    """Images in, names of classes out: [n]; of dense models, which nobody checks, [n, H, W]."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import ParamSchema, ParamSpec, Schema, TensorSpec

    images = TensorSpec(np.dtype(np.uint8), (-1, *image), "images")
    classes = TensorSpec(np.dtype(str), (-1,), "classes")
    params = ParamSchema([ParamSpec("client", "long", EVERYBODY)])
    return ModelSignature(Schema([images]), Schema([classes]), params)
