"""What the user can mend, and a fault of a method, read the same from another process."""

from __future__ import annotations

import faulty
import pytest
from lab import check_line

from fedray import run
from fedray.runtime import server
from fedray.storage.run_folder import RunFolder

pytestmark = pytest.mark.ray


def ended(small, out, capsys, *words: str) -> tuple[int, str]:
    """The exit code of a run on Ray, and what it says itself; Ray adds what its processes print."""
    code = run.main([*small.arguments(*words), "--no-track", "--out", str(out)])
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return code, "".join(line for line in lines if "pid=" not in line)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (("gpus=3", "workers=1"), "gpus"),  # Ray has two, which are not there
        (("gpus=1", "workers=1"), "gpus="),
        (("gpus=0.5", "workers=2"), "gpus="),
        (("gpus=1", "server_gpus=0.25", "workers=1"), "server_gpus="),
    ],
)
def test_an_accelerator_that_is_not_there(small, ray_nodes, tmp_path, capsys, keys, named):
    code, said = ended(small, tmp_path / "out", capsys, *keys)
    assert code == 2
    check_line(said.rstrip("\n"), named)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("broken", "client 1, round 2, step client_update"),
        ("broken_server", "server, round 2, step server_update"),
    ],
)
def test_a_fault_in_a_method_names_the_file_with_its_traceback(
    small, ray_nodes, faulty_methods, tmp_path, capsys, monkeypatch, method, where, debug
):
    monkeypatch.setattr(server, "ServerActor", faulty.KnowingServer)
    code, said = ended(small, tmp_path, capsys, f"algorithm={method}", "workers=1", *debug)
    assert code == 1
    assert where in said
    traceback = 'raise ArithmeticError("no such thing")'
    assert (traceback in said) == bool(debug)
    assert debug or said.count("\n") == 1
    kept = RunFolder(tmp_path).error
    assert str(kept) in said
    assert traceback in kept.read_text()
    assert RunFolder(tmp_path).read().done == 1
