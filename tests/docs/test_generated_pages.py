"""The generated pages are up to date, and the interface that they describe stays small."""

from __future__ import annotations

import pytest
from pages import ROOT

from _build.__main__ import command, pages
from fedray.command import run


@pytest.mark.slow
def test_readme_and_pages_are_up_to_date():
    outdated = [path.name for path, text in pages(ROOT).items() if path.read_text() != text]
    assert outdated == [], "run `make docs`"


@pytest.mark.slow
def test_docs_writes_what_check_misses(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "keys.md").write_text("old")
    assert run(command, ["--root", str(tmp_path)]) == 0
    assert f"wrote {tmp_path / 'docs' / 'keys.md'}" in capsys.readouterr().out
    keys = (tmp_path / "docs" / "keys.md").read_text()
    assert "| `data.partition` | `fedtsp_dirichlet` | a partition | " in keys
    assert "| `workers` | `2` | `int` >= 1, <= 10000 | Number of Ray actors" in keys
    assert run(command, ["--root", str(tmp_path), "--site"]) == 0
    capsys.readouterr()
    method = (tmp_path / "docs" / "methods" / "fedtsp.md").read_text()
    assert "| Eq. (7) | [`server_loss`](../../fedray/algorithms/text_guided/fedtsp.py#" in method
    assert "\n## Deviations\n\n- Eq. (6) uses the weights" in method
    assert "| `algorithm.lambda` | `7.0` |" in method
    assert "- [fedtsp_digits](../../fedray/experiments/fedtsp_digits.yaml): FedTSP on" in method
    index = (tmp_path / "docs" / "methods" / "index.md").read_text()
    assert "| [FedTSP](../../fedray/algorithms/text_guided/fedtsp.py) | `fedtsp` |" in index
    (tmp_path / "docs" / "privacy.md").write_text("old")
    assert run(command, ["--root", str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'docs' / 'privacy.md'} is not up to date; run make docs"
    ]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path, capsys):
    assert run(command, ["--root", str(tmp_path)]) == 2
    assert "has no folder docs" in capsys.readouterr().err
