"""The anchor task in Flower's simulation: python anchor_flower.py ROUNDS; see `benchmarks.anchor`.

Needs `flwr[simulation]` and `torch`, not fedray. Prints "round took SECONDS" for each round.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

CLIENTS, SHARE = 1000, 0.05


def network() -> nn.Sequential:
    """Return pfl-research's `simple_cnn` for images of 32x32x3."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 10),
    )  # fmt: skip


def numbers(model: nn.Module) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in model.state_dict().values()]


class Trainer(NumPyClient):
    """A client of 50 images of noise."""

    def __init__(self, number: int) -> None:
        random = torch.Generator().manual_seed(number)
        self.images = torch.randn(50, 3, 32, 32, generator=random)
        self.labels = torch.randint(10, (50,), generator=random)

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train one epoch."""
        torch.set_num_threads(1)
        model = network()
        names = model.state_dict().keys()
        model.load_state_dict(OrderedDict(zip(names, map(torch.tensor, parameters), strict=True)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in torch.randperm(50).split(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(self.images[batch]), self.labels[batch]).backward()
            optimizer.step()
        return numbers(model), 50, {}


class Timed(FedAvg):
    """FedAvg that prints the time from the draw of clients to their mean."""

    def configure_fit(self, *args: Any, **kwargs: Any) -> Any:
        """Note the time."""
        self.began = time.perf_counter()
        return super().configure_fit(*args, **kwargs)

    def aggregate_fit(self, *args: Any, **kwargs: Any) -> Any:
        """Print the time."""
        mean = super().aggregate_fit(*args, **kwargs)
        print(f"round took {time.perf_counter() - self.began:.3f}", flush=True)
        return mean


def client(context: Context) -> Any:
    return Trainer(int(context.node_config["partition-id"])).to_client()


def server(context: Context) -> ServerAppComponents:
    strategy = Timed(
        fraction_fit=SHARE, fraction_evaluate=0.0, min_available_clients=CLIENTS,
        initial_parameters=ndarrays_to_parameters(numbers(network())),
    )  # fmt: skip
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=int(sys.argv[1])))


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(
        ServerApp(server_fn=server), ClientApp(client_fn=client), CLIENTS, backend_config=resources
    )
