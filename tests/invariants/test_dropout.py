"""A network with dropout: equal numbers in serial and with any number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import refused
from small import assert_same, on_workers, serially

from fedray.config import Experiment
from fedray.runtime.resolve import resolve

NETWORK = '''
"""A network with dropout."""

from torch import nn

from fedray.plugin import architecture


@architecture("dropping")
def dropping(channels: int, image_size: int) -> nn.Module:
    """Build a hidden layer with dropout."""
    inputs = channels * image_size**2
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Dropout(0.5))
'''
KEYS = (
    *("model.group=dropping", "model.feature_dim=64", "data.clients=6", "data.samples=600"),
    *("data.partition.min_samples=10", "rounds=2", "local_epochs=1", "lr=1.0"),
    *("finetune_epochs=4", "workers=3", "cpus=1"),
)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("plugin") / "dropping_network.py"
    path.write_text(NETWORK)
    return str(path)


@pytest.fixture(scope="module")
def experiment(plugin) -> Experiment:
    return resolve("fedavg_digits", KEYS, [plugin])


@pytest.fixture(scope="module")
def undisturbed(experiment, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("serial")
    serially(experiment, out)
    return out


@pytest.mark.ray
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_workers(experiment, undisturbed, pool, tmp_path, count):
    on_workers(experiment, tmp_path, pool, count)
    assert_same(undisturbed, tmp_path)


def test_its_clients_cannot_be_stacked(plugin, tmp_path):
    stacked = resolve("fedavg_digits", [*KEYS, "stacked=2"], [plugin])
    refused(lambda: serially(stacked, tmp_path), "stacked")
