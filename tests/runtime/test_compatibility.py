"""What a method cannot do with what an experiment gives it."""

from __future__ import annotations

import pytest

from fedray.base.errors import UserError
from fedray.config import load_experiment
from fedray.runtime.assembly import load_data
from fedray.runtime.compatibility import check_compatible


@pytest.mark.parametrize(
    ("method", "keys", "message"),
    [
        ("fedavg", {"data.augment": "flip_crop"}, None),
        ("fedavg", {"model.group": "unet_tiny"}, None),
        (
            "fedproto",
            {"model.group": "unet_tiny"},
            r"fedproto is defined for one label .* choose .*fedavg",
        ),
        (
            "fedavg",
            {"model.group": "unet_tiny", "data.augment": "flip_crop"},
            r"data\.augment=flip_crop transforms images but not their masks",
        ),
        ("promptfl", {"finetune_epochs": 1}, r"finetune_epochs=1 trains heads, but promptfl's"),
        (
            "fedavg",
            {"data.novel": True, "data.test": "official"},
            r"data\.novel=true tests classes",
        ),
        ("promptfl", {"data.novel": True, "data.test": "official"}, None),
    ],
)
def test_requirements_are_held_against_what_is_given(method, keys, message):
    def checked() -> None:
        check_compatible(load_experiment({"algorithm": method}, keys.items()))

    if message is None:
        checked()
    else:
        with pytest.raises(UserError, match=message):
            checked()


# --- what clients' images must suffice for --------------------------------------------------------


@pytest.mark.parametrize("partition", ["iid", "classes", "class_chunks", "dirichlet"])
def test_advice_names_only_keys_that_the_partition_has(assemble, partition):
    keys = {"data.samples": 16, "data.clients": 16, "data.partition": partition}
    if partition == "dirichlet":
        keys["data.partition"] = {"name": "dirichlet", "alpha": 1e6, "min_samples": 1}
    if partition == "class_chunks":
        keys["data.clients"], keys["data.samples"] = 10, 10
    with pytest.raises(UserError) as caught:
        load_data(assemble("local", keys).experiment)
    assert ("data.partition.min_samples" in str(caught.value)) == (partition == "dirichlet")
