"""Loading of a run's kept models from its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedray.base.errors import UserError
from fedray.config import load_experiment
from fedray.data import FederatedData, ImageSet
from fedray.runtime.assembly import Assembly
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import Which, kept_models
from fedray.trained.model import TrainedModels


def open_models(folder: Path, which: Which | None = None, device: str = "cpu") -> TrainedModels:
    """Load the kept models of a run.

    Args:
        folder: the folder of the run.
        which: the models of the "best" or the "last" round; None: the best, or the last if no best
            round was selected.
        device: a PyTorch device for the models.

    Raises:
        UserError: if there are no models, or they are damaged.
    """
    files = RunFolder(folder)
    run = files.read()
    kept = kept_models(files, run)
    asks_best = run.info.config["keep"]["models"] in (None, "best")
    chosen = which or ("best" if run.best is not None and (asks_best or "best" in kept) else "last")
    best = kept["best"].facts["round"] if "best" in kept else None
    if chosen == "last" and run.is_finished and best == run.done:
        chosen = "best"  # the last round is the best
    if chosen not in kept:
        why = "keep.models=best or last keeps models, and a best round needs images that choose it"
        why = why if run.is_finished else "the run has not finished"
        have = f"; it has those of the {' and '.join(kept)} round" if kept else ""
        raise UserError(f"{folder} has no models of the {chosen} round{have}: {why}")
    return TrainedModels(folder, without_data(folder), chosen, kept[chosen], torch.device(device))


def without_data(folder: Path) -> Assembly:
    """Return the components of a run whose clients have no images, nor need its folder of them."""
    tree, partition = RunFolder(folder).experiment(), RunFolder(folder).partition()
    experiment = load_experiment({**tree, "data": {**tree["data"], "root": None}})
    channels, height, width = partition["image"]
    images = ImageSet(
        source=experiment.data.source.name,
        images=np.zeros((0, channels, height, width), np.uint8),
        labels=np.zeros(0, np.int64),
        class_names=tuple(partition["class_names"]),
        origin=np.zeros(0, np.int8),
        masks=np.zeros((0, height, width), np.uint8),
    )
    nobody = (np.zeros(0, np.int64),) * experiment.data.clients
    return Assembly(experiment, FederatedData(images, nobody, nobody, base=partition["base"]))
