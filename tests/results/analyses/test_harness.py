"""What all analyses share: names, options, pages."""

from __future__ import annotations

import pytest
from commands import analyse as main
from written_runs import write_run

from fedray.results.analyses.harness import MODULES


@pytest.mark.parametrize("name", MODULES)
def test_every_analysis_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert MODULES[name] in " ".join(printed.split())
    assert all(flag in printed for flag in ("--out", "--plugin", "--debug"))


def test_an_unknown_analysis_is_refused_with_the_nearest_one(tmp_path, capsys):
    assert main(["ckaa", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "there is no analysis 'ckaa'" in error
    assert "Did you mean 'cka'" in error
    assert error.count("\n") == 1


def test_a_page_is_written_and_warns_of_runs_that_were_left_out(tmp_path, capsys):
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, [0.1, 0.5, 0.7])
    words = ["target", str(tmp_path / "runs"), "--target", "0.5"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "target.md").read_text()
    assert "| fedtsp | 1 | – | 2 | – | 1 | 3 |" in page
    assert "- Warning: seed 0 of fedtsp has two runs" in page
    assert str(tmp_path / "out" / "target.md") in capsys.readouterr().out
