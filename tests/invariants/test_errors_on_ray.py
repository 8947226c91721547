"""What the user can mend reads the same when it is found in another process."""

from __future__ import annotations

import pytest

from fedray import run

pytestmark = pytest.mark.ray


def test_prompts_longer_than_the_text_found_by_the_server_actor(small, ray_nodes, tmp_path, capsys):
    out = tmp_path / "out"
    words = small.arguments("algorithm.prompt_length=50", "workers=1", "--no-track")
    assert run.main([*words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: algorithm.prompt_length=50 is more than the shortest text")
    assert error.count("\n") == 1
    assert not out.exists()


def test_more_gpus_than_there_are(small, ray_nodes, tmp_path, capsys):
    out = tmp_path / "out"
    words = small.arguments("gpus=3", "workers=1", "--no-track")
    assert run.main([*words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 1 workers ask for 1 CPU, 3 GPU, but the cluster has")
    assert error.endswith("set gpus=2 or less\n")
    assert not out.exists()
