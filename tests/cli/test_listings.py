"""What can be chosen by name is listed and documented out of the registries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedray
from fedray.__main__ import main
from fedray.cli.catalogue import KINDS, entries
from fedray.cli.docs import BEGIN, hooks_of, overriding, pages
from fedray.core import Algorithm, LocalTraining, algorithms

ROOT = Path(fedray.__file__).parents[1]
in_a_checkout = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="installed without the repository"
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_says_what_it_is_and_what_its_parameters_mean(kind):
    found = entries(kind)
    assert found
    for entry in found:
        assert len(entry.summary) > 10, entry.name
        assert entry.paper
        assert entry.file, entry.name
        for parameter in entry.parameters:
            assert len(parameter.text) > 10, f"{entry.name}.{parameter.name} has no docstring"


def test_every_method_says_what_travels():
    assert [entry.name for entry in entries("algorithms") if not entry.travels] == []
    assert len(entries("algorithms")) >= 41


@pytest.mark.parametrize("kind", KINDS)
def test_ls_prints_a_line_for_each_or_json(kind, capsys):
    assert main(["ls", kind]) == 0
    lines = capsys.readouterr().out
    names = [entry.name for entry in entries(kind)]
    assert all(f"\n{name}" in f"\n{lines}" for name in names)
    assert main(["ls", kind, "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == names


def test_an_unknown_kind_is_refused(capsys):
    assert main(["ls", "algoritms"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: argument kind: invalid choice: 'algoritms'")
    assert error.count("\n") == 1


@in_a_checkout
def test_readme_and_pages_are_up_to_date():
    outdated = [path.name for path, text in pages(ROOT).items() if path.read_text() != text]
    assert outdated == [], "run `make docs`"


def test_docs_writes_what_check_misses(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"# x\n{BEGIN}\nold\n<!-- methods: end -->\nrest\n")
    assert main(["docs", "--root", str(tmp_path), "--check"]) == 1
    assert "README.md is not up to date" in capsys.readouterr().out
    assert main(["docs", "--root", str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# x\n")
    assert text.endswith("rest\n")
    assert "\nold\n" not in text
    assert "| [FedTSP](fedray/algorithms/text_guided/fedtsp.py) | `fedtsp` |" in text
    assert main(["docs", "--root", str(tmp_path), "--check"]) == 0


def test_a_readme_without_markers_for_the_tables_is_refused(tmp_path, capsys):
    (tmp_path / "README.md").write_text("# x\n")
    assert main(["docs", "--root", str(tmp_path)]) == 2
    assert "lacks the lines" in capsys.readouterr().err


# --- the interface -------------------------------------------------------------------------------


def test_the_interface_has_at_most_twelve_hooks_each_used_by_several_methods():
    hooks = [*hooks_of(Algorithm), *hooks_of(LocalTraining)]
    assert {"init_server", "round", "client_update", "predict", "loss"} <= set(hooks)
    assert len(hooks) <= 12
    for hook in hooks:
        assert len(overriding(hook)[0]) > 1, hook


def test_every_method_sees_hyper_parameters_of_its_own_type():
    for method in algorithms.entries():
        owners = [cls for cls in method.__mro__ if "HParams" in vars(cls)]
        assert "hp" in owners[0].__annotations__, method.name
