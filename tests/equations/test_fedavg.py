"""FedAvg: running statistics, noise, and what a plug-in may forget."""

from __future__ import annotations

import pytest
import torch
from tensors import same

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.averaging.scaffold import Scaffold
from fedray.base.errors import ServerError
from fedray.core import ClientState

ONE_KIND = {"model.group": "cnn2"}


def mean_model(uplinks):
    method = FedAvg()
    return method.server_update({"model": uplinks[0].model}, uplinks, None)["model"]


def test_running_statistics_are_averaged_and_counters_take_the_maximum():
    uplinks = {
        client: FedAvg.up(
            model={
                "running_mean": torch.tensor([mean]),
                "num_batches_tracked": torch.tensor(steps),
            },
            samples=1,
        )
        for client, mean, steps in [(0, 2.0, 7), (1, 4.0, 9), (2, 6.0, 3)]
    }
    found = mean_model(uplinks)
    assert found["running_mean"].tolist() == pytest.approx([4.0])
    assert found["num_batches_tracked"].dtype == torch.int64
    assert int(found["num_batches_tracked"]) == 9


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "fedproto_global"])
def test_noise_reaches_every_parameter_and_no_buffer(run, method):
    changes = {"model.group": "cnn3", "rounds": 1}
    wire = {"privacy.mode": "local", "privacy.clip_norm": 1.0, "privacy.noise_multiplier": 0.1}
    quiet = run(method, changes).servers[1]["model"]
    loud = run(method, {**changes, **wire}).servers[1]["model"]
    for name, tensor in quiet.items():
        statistic = "running" in name or name.endswith("num_batches_tracked")
        assert torch.equal(loud[name], tensor) == statistic, name


def test_a_misspelt_shared_tensor_is_not_left_out_without_a_word(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "shared", lambda self, model: {"haed.weight", "head.bias"})
    with pytest.raises(ServerError, match=r"FedAvg.shared: .* haed.weight"):
        run("fedavg", ONE_KIND)


def test_a_field_of_the_download_that_the_server_state_lacks_is_named(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "down", Scaffold.down)
    with pytest.raises(ServerError, match="KeyError: 'control'"):
        run("fedavg", ONE_KIND)


def test_a_client_that_keeps_its_model_still_begins_with_the_global_one(run, monkeypatch):
    changes = {"rounds": 3, "model.group": "mlp"}
    expected = run("fedavg", changes).servers[-1]["model"]
    finish = FedAvg.finish

    def keeping(self, local, trained):
        upload, _ = finish(self, local, trained)
        return upload, ClientState(local.client.save(local.model))

    monkeypatch.setattr(FedAvg, "finish", keeping)
    assert same(run("fedavg", changes).servers[-1]["model"], expected)
