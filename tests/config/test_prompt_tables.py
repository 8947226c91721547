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
