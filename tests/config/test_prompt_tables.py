"""The methods of one table differ in the method alone: partition, precision, preprocessing."""

from __future__ import annotations

import pytest

from fedray.config import flatten
from fedray.runtime.resolve import resolve

pytestmark = pytest.mark.usefixtures("empty_data")
FEDMGP_2 = [
    "promptfl",
    "promptfl_fedprox",
    "promptfl_pfedme",
    "promptfolio",
    "fedotp",
    "fedtpg",
    "fedpgp",
    "fedmgp_cifar100",
]
DP2FL_1 = ["maple_local", "maple_fedavg", "maple_fedprox", "maple_pfedme"]
TABLES = {
    "promptfl_paper": [f"{name}_paper" for name in FEDMGP_2],
    "dp2fl_caltech101_paper": [f"{name}_caltech101_paper" for name in DP2FL_1],
}


def without_method(name):
    keys = flatten(resolve(name).reproducibility_key())
    of_method = ("algorithm", "versions.algorithm")
    return {key: value for key, value in keys.items() if not key.startswith(of_method)}


@pytest.mark.parametrize("first", TABLES)
def test_methods_of_a_table_share_everything_else(first):
    expected = without_method(first)
    for name in TABLES[first]:
        assert without_method(name) == expected, name


@pytest.mark.parametrize(
    "name",
    ["promptfl_paper", "fedmgp_base_to_novel_paper", "fedmgp_domainnet_paper"],
)
def test_the_papers_preprocessing(name):
    data = resolve(name).data
    assert (data.resize, data.augment.name, data.image_size) == ("bicubic", "resized_crop", 224)


def test_dp2fls_preset_is_the_paper_as_printed():
    found = resolve("dp2fl_clip", ["algorithm.preset=paper"])
    assert (found.algorithm.tree()["gamma_mode"], found.lr) == ("literal", 0.035)
    assert resolve("dp2fl_clip").algorithm.tree()["gamma_mode"] == "bounded"
    paper = resolve("dp2fl_caltech101_paper")
    assert (paper.algorithm.tree()["gamma_mode"], paper.lr) == ("literal", 0.035)


def test_pfedme_moves_w_at_paper_scale():
    """Its own eta lambda of 0.075 would hardly move it; ours are tuned like the others' keys."""
    for name in ("maple_pfedme_caltech101_paper", "promptfl_pfedme_paper"):
        params = resolve(name).algorithm.tree()
        assert params["eta"] * params["lambda"] == pytest.approx(0.8)
