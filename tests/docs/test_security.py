"""Promises of SECURITY.md that no other folder of tests keeps."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest
from lab import refused
from torch import nn

import fedray
from fedray.models.pretrained import start_from_pretrained
from fedray.runtime import cluster

PACKAGE = Path(fedray.__file__).parent


def test_ray_is_started_for_this_machine_alone(monkeypatch):
    options = {}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **given: options.update(given))
    monkeypatch.setattr("ray.nodes", list)
    cluster.connect()
    assert (options["_node_ip_address"], options["include_dashboard"]) == ("127.0.0.1", False)


def test_files_are_never_unpickled():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called == "torch.load":
                assert given.get("weights_only") == "True", path
            if called in ("np.load", "numpy.load"):
                assert given.get("allow_pickle") == "False", path
            unpickles = r"(pickle|cloudpickle|dill|joblib)\.(loads?|Unpickler)"
            assert not re.fullmatch(unpickles, called), path


class Harm:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["weights.pth", "weights.pt"])
def test_code_in_a_weight_file_does_not_run(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"weight": Harm(tmp_path / "harm")}, protocol=2))
    refused(lambda: start_from_pretrained(nn.Linear(1, 1), "resnet18", str(path)), name)
    assert not (tmp_path / "harm").exists()
