"""Trained models, loaded from a run's folder without the run's data and without Ray.

images.py   preprocessing of tensors, arrays, PIL images and files
model.py    `TrainedModel`, one client's model: predictions, weights, export; `TrainedModels`
loading.py  `open_models`, which loads all models of a run
"""

from fedray.trained.loading import open_models
from fedray.trained.model import Predictions, TrainedModel, TrainedModels
