"""Every promise of SECURITY.md has tests."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest
from torch import nn

import fedray
from fedray.errors import FedrayError
from fedray.models.pretrained import start_from_pretrained

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(fedray.__file__).parent
PROMISES = {
    "What a kill or a full disk leaves is repaired or refused.": "storage/test_states",
    "No source runs unasked.": "plugins/test_stranger_modules",
    "Nothing is unpickled.": "docs/test_security",
    "Sizes are bounded.": "storage/test_files",
    "Control characters do not reach your terminal.": "cli/test_terminal_text",
}
"""The promises about files of other people, and the tests of each."""


def test_every_promise_has_tests():
    section = (ROOT / "SECURITY.md").read_text().split("\n## ")[2]
    assert {*re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE)} == {*PROMISES}
    assert all((ROOT / "tests" / f"{place}.py").exists() for place in PROMISES.values())


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def test_files_are_never_unpickled():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called(node) == "torch.load":
                assert given.get("weights_only") == "True", path
            if called(node) in ("np.load", "numpy.load"):
                assert given.get("allow_pickle") == "False", path
            unpickles = r"(pickle|cloudpickle|dill|joblib)\.(loads?|Unpickler)"
            assert not re.fullmatch(unpickles, called(node)), path


class Harm:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["weights.pth", "weights.pt"])
def test_code_in_a_weight_file_does_not_run(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"weight": Harm(tmp_path / "harm")}, protocol=2))
    with pytest.raises(FedrayError):
        start_from_pretrained(nn.Linear(1, 1), "resnet18", str(path))
    assert not (tmp_path / "harm").exists()
