"""The code of an entry that a script or a notebook registers, as a run's identity sees it."""

from __future__ import annotations

import sys
import types

import pytest

from fedray.base.fingerprint import fingerprint
from fedray.config.registry import registry, version_of

CELL = """
import functools, re, threading
import torch
import torch.nn.functional as F
from fedray.plugin import FedAvg, sent

FACTOR = 1.0
TABLE = {"a": {1, 2}, "b": torch.ones(2)}
PATTERN = re.compile("weight$")

def helper(x):
    return x * FACTOR

@functools.cache
def cached(x):
    return x + 1

class Holder:
    def __init__(self, size):
        self.size = size

HOLDER = Holder(3)

class Base(FedAvg):
    def scale(self):
        return 2

def define(closure):
    class Mine(Base):
        name = "minecell"
        title = "Mine"
        paper = "-"
        up = {"kept": sent("weights", "weights")}
        mu: float = 0.5

        def check(self):
            assert self.mu >= 0

        @property
        def tau(self):
            return 7

        @staticmethod
        def still(x, bias=1):
            return (lambda y: y + 5)(x) + bias

        def loss(self, output, batch, local):
            keys = [name for name in local.down.model if PATTERN.search(name)]
            extra = TABLE["b"].sum() + HOLDER.size + cached(len(keys))
            return closure * helper(F.cross_entropy(output.logits, batch.labels)) + extra

    return Mine

MINE = define(1.0)
"""

CHANGES = [
    ("closure *", "closure +"),
    ("define(1.0)", "define(0.0)"),
    ("FACTOR = 1.0", "FACTOR = 2.0"),
    ("{1, 2}", "{1, 3}"),
    ("torch.ones(2)", "torch.zeros(2)"),
    ('"weight$"', '"bias$"'),
    ("x * FACTOR", "x / FACTOR"),
    ("x + 1", "x + 2"),
    ("Holder(3)", "Holder(4)"),
    ("return 2", "return 3"),
    ('sent("weights",', 'sent("statistics",'),
    ("mu: float = 0.5", "mu: float = 0.25"),
    ("mu >= 0", "mu > 0"),
    ("return 7", "return 8"),
    ("bias=1", "bias=2"),
    ("y + 5", "y + 6"),
    ("F.cross_entropy", "F.nll_loss"),
    ("PATTERN = re.compile", "PATTERN = threading.Lock() or re.compile"),
]
"""What a user changes in the cell; the last one holds an object that nothing can read."""


def run_cell(text):
    """Run the text of a cell as Jupyter and `python script.py` do, and return its namespace."""
    module = types.ModuleType("__main__")
    exec(compile(text, f"<cell {id(module)}>", "exec"), vars(module))
    return vars(module)


@pytest.fixture(scope="module")
def unchanged():
    return fingerprint(run_cell(CELL)["MINE"])


def test_the_same_code_run_again_has_the_same_fingerprint(unchanged):
    lines = CELL.replace("\nFACTOR", "\n# a comment\n\nFACTOR")
    assert fingerprint(run_cell(lines)["MINE"]) == unchanged


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=[before for before, _ in CHANGES])
def test_changed_code_has_another_fingerprint(unchanged, before, after):
    assert before in CELL
    assert fingerprint(run_cell(CELL.replace(before, after))["MINE"]) != unchanged


def test_a_module_beside_the_script_counts(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("def f(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "import beside\nclass Mine:\n    def f(self):\n        return beside.f(1)\n"
    before = fingerprint(run_cell(text)["Mine"])
    monkeypatch.delitem(sys.modules, "beside")
    (tmp_path / "beside.py").write_text("def f(x):\n    return x + 1  # longer\n")
    assert fingerprint(run_cell(text)["Mine"]) != before
    monkeypatch.delitem(sys.modules, "beside")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "model group",
            """from fedray.models.groups import Group, groups
groups.add(Group("minecell", "Two", ("mlp", "CHANGED")))""",
        ),
        (
            "architecture",
            """from torch import nn
from fedray.models.architectures import architecture
@architecture("minecell")
def make(channels, size):
    return nn.Flatten("CHANGED")""",
        ),
    ],
)
def test_objects_of_a_script_have_a_version_with_their_code(kind, text):
    """Such an entry has a type of the package and the content of the script."""
    versions = []
    for content in ("cnn2", "cnn4", "cnn2"):
        run_cell(text.replace("CHANGED", content))
        versions.append(version_of(registry(kind)._entries["minecell"]))
        del registry(kind)._entries["minecell"]
    assert versions[0] == versions[2] != versions[1]
