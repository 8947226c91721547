"""A thousand virtual clients are no thousand processes."""

from __future__ import annotations

import numpy as np
import pytest
import ray
from image_files import encode, structs, write_names, write_table
from PIL import Image
from small import numbers, on_workers

from fedray.runtime.devices import peak_rss
from fedray.runtime.resolve import resolve

CLIENTS = 1000


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A parquet folder with four tiny images for each client."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4 * CLIENTS, 8, 8), dtype=np.uint8)
    images = structs([encode(Image.fromarray(one)) for one in pixels])
    labels = rng.permutation(4 * CLIENTS) % 2
    write_table(root / "train.parquet", {"image": images, "label": labels})
    write_names(root, ["one", "other"])
    return root


@pytest.mark.ray
@pytest.mark.slow
def test_a_thousand_clients_on_two_workers(pool, images, tmp_path):
    two = pool.workers[:2]
    before = ray.get([worker.__ray_call__.remote(lambda _: peak_rss()) for worker in two])
    experiment = resolve(
        "fedtsp_digits",
        [
            "algorithm=fedproto",
            "rounds=1",
            "local_epochs=1",
            "data.source=parquet",
            f"data.root={images}",
            f"data.clients={CLIENTS}",
            "data.partition=iid",
            "model.group=mlp",
            "model.feature_dim=16",
        ],
    )
    on_workers(experiment, tmp_path, pool, 2)
    rounds = numbers(tmp_path)["rounds"]
    assert [len(record["per_client"]) for record in rounds] == [CLIENTS, CLIENTS]
    assert len(rounds[1]["participants"]) == CLIENTS
    assert rounds[1]["up"]["params"]["prototypes"] > CLIENTS * 16
    after = ray.get([worker.__ray_call__.remote(lambda _: peak_rss()) for worker in two])
    assert all(b - a < 300e6 for a, b in zip(before, after, strict=True))
