"""FedAvg by hand, and equal to centralised training where there is one client."""

from __future__ import annotations

import pytest
import torch
from reference import SHAPE

from fedray.algorithms.averaging.fedavg import FedAvg, TrainedModel
from fedray.algorithms.averaging.scaffold import ControlledModel
from fedray.algorithms.mean import client_weights, weighted_mean
from fedray.errors import ServerError
from fedray.models import Pixels, build

ONE_KIND = {"model.group": "cnn2"}


def mean_model(uplinks):
    models = {client: upload.model for client, upload in uplinks.items()}
    return weighted_mean(client_weights(uplinks, "samples"), models)


def test_algorithm_1_weighs_by_samples():
    uplinks = {
        0: TrainedModel({"w": torch.tensor([1.0, 0.0]), "b": torch.tensor([[4.0]])}, {}, 30),
        5: TrainedModel({"w": torch.tensor([5.0, 8.0]), "b": torch.tensor([[0.0]])}, {}, 10),
    }
    found = mean_model(uplinks)
    assert found["w"].tolist() == [2.0, 2.0]
    assert found["b"].tolist() == [[3.0]]


def test_running_statistics_are_averaged_and_counters_take_the_maximum():
    uplinks = {
        client: TrainedModel(
            weights={},
            buffers={
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


def test_the_mean_does_not_change_the_uploads():
    weights = torch.ones(3)
    uplinks = {0: TrainedModel({"w": weights}, {}, 1), 1: TrainedModel({"w": weights * 3}, {}, 1)}
    mean_model(uplinks)
    assert weights.tolist() == [1, 1, 1]


def test_batch_norm_buffers_of_a_run(run):
    done = run("fedavg", {"model.group": "cnn3", "rounds": 1, "data.partition": "iid"})
    steps = [-(-len(indices) // 16) for indices in done.assembly.data.train]
    before, after = (state["model"] for state in done.servers)
    counters = [n for n in after if n.endswith("num_batches_tracked")]
    assert len(counters) == 3
    assert all(int(after[name]) == max(steps) for name in counters)
    means = [n for n in after if n.endswith("running_mean")]
    assert not any(torch.equal(after[n], before[n]) for n in means)


def test_everybody_is_tested_with_the_global_model(run):
    done = run("fedavg", {**ONE_KIND, "rounds": 1, "participation": 0.5})
    from sklearn.metrics import accuracy_score

    assembly = done.assembly
    model = build("cnn2", **SHAPE, generator=None).eval()
    model.load_state_dict(done.servers[1]["model"])
    for client, accuracy in done.results[1].per_client.items():
        indices = assembly.data.test[client]
        with torch.no_grad():
            images = torch.from_numpy(assembly.data.images.images[indices]).float() * (2 / 255) - 1
            guesses = model(Pixels(images)).logits.argmax(1)
        assert accuracy == accuracy_score(assembly.data.images.labels[indices], guesses)
    assert len(done.results[1].participants) == 2
    assert len(done.results[1].per_client) == 4


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "fedproto_global"])
def test_noise_on_the_wire_spares_running_statistics(run, method):
    privacy = {"privacy.mode": "local", "privacy.clip_norm": 1.0, "privacy.noise_multiplier": 1.0}
    wire = {**privacy, "privacy.noise_seed": 0, "wire.up_bits": 4}
    done = run(method, {"model.group": "cnn3", "rounds": 2, "lr": 0.001, **wire})
    for state in (server["model"] for server in done.servers):
        variances = [tensor for name, tensor in state.items() if name.endswith("running_var")]
        assert len(variances) == 3
        assert all(bool((tensor >= 0).all()) for tensor in variances)
        assert all(bool(tensor.isfinite().all()) for tensor in state.values())
    assert all(0 <= value <= 1 for value in done.results[-1].per_client.values())


def test_noise_reaches_every_parameter_and_no_buffer(run):
    changes = {"model.group": "cnn3", "rounds": 1}
    wire = {"privacy.mode": "local", "privacy.clip_norm": 1.0, "privacy.noise_multiplier": 0.1}
    quiet = run("fedavg", changes).servers[1]["model"]
    loud = run("fedavg", {**changes, **wire}).servers[1]["model"]
    for name, tensor in quiet.items():
        statistic = "running" in name or name.endswith("num_batches_tracked")
        assert torch.equal(loud[name], tensor) == statistic, name


def test_a_misspelt_shared_tensor_is_not_left_out_without_a_word(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "shared", lambda self, model: {"haed.weight", "head.bias"})
    with pytest.raises(ServerError, match=r"FedAvg.shared names 'haed.weight', .* 'head.weight'"):
        run("fedavg", ONE_KIND)


def test_a_field_of_the_download_that_the_server_state_lacks_is_named(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "down_type", ControlledModel)
    with pytest.raises(ServerError, match=r"no 'control', a field of ControlledModel; .*FedAvg\.i"):
        run("fedavg", ONE_KIND)
