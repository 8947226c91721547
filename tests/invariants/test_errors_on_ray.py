"""What the user can mend reads the same when it is found in another process."""

from __future__ import annotations

import platform
import re

import faulty
import pytest
import torch

from fedray import run
from fedray.runtime import server
from fedray.storage.run_folder import RunFolder

pytestmark = pytest.mark.ray


def said(capsys) -> str:
    """What a command says itself; Ray adds what its processes print."""
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return "".join(line for line in lines if "pid=" not in line)


def test_more_gpus_than_there_are(small, ray_nodes, tmp_path, capsys):
    out = tmp_path / "out"
    words = small.arguments("gpus=3", "workers=1", "--no-track")
    assert run.main([*words, "--out", str(out)]) == 2
    error = said(capsys)
    assert error.startswith("error: 1 workers need 1 CPU, 3 GPU (")
    assert error.endswith("lower workers, cpus or gpus\n")
    assert not out.exists()


@pytest.mark.parametrize(
    ("keys", "role", "key"),
    [
        (("gpus=1", "workers=1"), "worker ", "gpus"),
        (("gpus=0.5", "workers=2"), "worker ", "gpus"),
        (("gpus=1", "server_gpus=0.25", "workers=1"), "the server", "server_gpus"),
    ],
)
def test_an_accelerator_that_is_not_there(small, ray_nodes, tmp_path, capsys, keys, role, key):
    """Ray was started with GPUs that this machine does not have."""
    out = tmp_path / "out"
    assert run.main([*small.arguments(*keys, "--no-track"), "--out", str(out)]) == 2
    error = said(capsys)
    assert error.startswith(f"error: {key}=")
    found = f", but torch {torch.__version__} finds no accelerator on {platform.node()} "
    assert re.search(rf" for {role}\d?{re.escape(found)}", error)
    assert "CUDA_VISIBLE_DEVICES is " in error
    assert error.endswith(f"or set {key}=0\n")
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("broken", "client 1, round 2, step client_update: ArithmeticError: no such thing"),
        (
            "broken_server",
            "server, round 2, step server_update: ArithmeticError: no such thing",
        ),
    ],
)
def test_a_fault_in_a_method_names_the_file_with_its_traceback(
    small, ray_nodes, faulty_methods, tmp_path, capsys, monkeypatch, method, sentence
):
    monkeypatch.setattr(server, "ServerActor", faulty.KnowingServer)
    words = small.arguments(f"algorithm={method}", "workers=1", "--no-track")
    out = tmp_path / "out"
    assert run.main([*words, "--out", str(out)]) == 1
    kept = RunFolder(out).error
    assert said(capsys) == f"failed: {sentence} (traceback in {kept})\n"
    assert 'raise ArithmeticError("no such thing")' in kept.read_text()
    assert RunFolder(out).read().done == 1


def test_with_debug_the_traceback_of_the_fault_is_printed(
    small, ray_nodes, faulty_methods, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(server, "ServerActor", faulty.KnowingServer)
    words = small.arguments("algorithm=broken", "rounds=2", "workers=1", "--no-track", "--debug")
    assert run.main([*words, "--out", str(tmp_path)]) == 1
    assert 'raise ArithmeticError("no such thing")' in capsys.readouterr().err
