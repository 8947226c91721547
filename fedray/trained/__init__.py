"""Trained models, taken out of a run's folder: no data is needed, nor Ray.

images.py  tensors, arrays, PIL images and files, as what a model sees
model.py   one client's model: predictions, weights, export
opened.py  all models that a run has kept
card.py    the model card of an exported model
pyfunc.py  the same models as MLflow loads them
"""

from fedray.trained.loading import TrainedModels, open_models
from fedray.trained.model import Predictions, TrainedModel
