"""A run's models in MLflow: loaded by mlflow.pyfunc, they answer as they do from the folder."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import fedray
from fedray.errors import UserError
from fedray.storage.run_folder import RunFolder
from fedray.tracking import resolve_uri
from fedray.tracking.models import models_of


@pytest.mark.slow
def test_mlflow_loads_what_was_logged_once(tmp_path, monkeypatch, empty_database):
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "results").mkdir()
    shutil.copy(empty_database, tmp_path / "results" / "mlflow.db")
    small = {"data.clients": 2, "data.samples": 200, "rounds": 1, "local_epochs": 1}
    experiment = fedray.Experiment("fedproto_digits", small, keep={"log": True})
    result = experiment.train(executor="serial", track=True)

    import mlflow

    mlflow.set_tracking_uri(resolve_uri(tmp_path / "results"))
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert len(runs) == 1
    loaded = mlflow.pyfunc.load_model(f"runs:/{runs[0].info.run_id}/model")
    shape = loaded.metadata.get_input_schema().inputs[0].shape
    assert shape == (-1, 1, 8, 8)
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    for client in range(2):
        answers = loaded.predict(images, params={"client": client})
        assert list(answers) == result.model(client).predict(images).names
    with pytest.raises(UserError, match="every client has a model of its own; pass a client"):
        loaded.predict(images)


def test_models_are_logged_only_where_it_was_asked_for(tmp_path):
    small = {"data.clients": 2, "data.samples": 200, "rounds": 1, "local_epochs": 1}
    experiment = fedray.Experiment("fedproto_digits", small)
    result = experiment.train(tmp_path / "run", executor="serial")
    assert models_of(result.folder, RunFolder(result.folder).read()) is None
