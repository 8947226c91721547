"""`fedray WORD ...`: every word finds what does it, help imports nothing heavy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import fedray
from fedray.base.shipped import FOLDERS, names
from fedray.cli.main import COMMANDS, group, main

WORDS = [word for summaries in COMMANDS.values() for word in summaries]
PAGE = Path(fedray.__file__).parents[1] / "docs" / "command.md"


@pytest.mark.parametrize("word", WORDS)
def test_every_word_says_how_it_is_used(word, capsys):
    assert main([word, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: fedray {word} [OPTIONS]")
    assert all(len(line) <= 80 for line in said.splitlines())


def test_help_shows_every_word_in_its_group_in_80_columns(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.splitlines())
    sections = said.split("\n\n")[-len(COMMANDS) - 1 : -1]
    for section, summaries in zip(sections, COMMANDS.values(), strict=True):
        assert all(f"\n  {name} " in section for name in summaries)


def test_no_words_show_the_help(capsys):
    assert main([]) == 2
    assert "Your own:" in capsys.readouterr().err


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedray {fedray.__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "error: there is no command 'rnu'. Did you mean 'run'?\n"),
        (["--bla"], "error: No such option '--bla' (see fedray --help)\n"),
        (["run", "fedtsp_digit"], "error: there is no experiment 'fedtsp_digit'. Did you mean"),
    ],
)
def test_wrong_words_are_one_sentence(words, said, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("words", "begun", "found"),
    [
        ([], "sw", ["sweep"]),
        (["run"], "fedtsp_cifar100", [n for n in names("experiments") if "tsp_cifar100" in n]),
        (["sweep"], "fedtsp_la", ["fedtsp_lambda"]),
        (["table"], "digi", ["digits"]),
        (["run", "fedtsp_digits"], "fedtsp", []),
        (["run", "fedtsp_digits"], "--ex", ["--executor"]),
        (["ls"], "alg", ["algorithms"]),
        (["show"], "fedtsp_tau", ["fedtsp_tau"]),
    ],
)
def test_names_are_completed(words, begun, found):
    shell = ShellComplete(group, {}, "fedray", "_FEDRAY_COMPLETE")
    assert [item.value for item in shell.get_completions(words, begun)] == found


def test_every_kind_of_file_is_found():
    assert all(names(kind) for kind in FOLDERS)


STEPS = "torch numpy pydantic"
"""What steps need, and a process that runs none does not."""
RARE = "mlflow pandas pyarrow scipy matplotlib sklearn transformers optuna"
"""What a run needs in none of its processes but those that write to MLflow and that draw."""
RUN = "run fedavg_digits rounds=1 data.samples=300 --executor serial --out {}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "heavy"),
    [
        ("main(['--help'])", f"ray {STEPS} {RARE}"),
        ("main(['ls', 'algorithms'])", f"ray {RARE}"),
        (f"main('{RUN} --no-track'.split())", f"ray {RARE}"),
        (f"main('{RUN}'.split())", f"ray {RARE}"),
        ("import fedray.cli.run, fedray.cli.study, fedray", "torch ray mlflow"),
        ("import fedray.runtime.server", RARE),
        ("import fedray.cli.report", "mlflow torch matplotlib ray"),
        (
            "from fedray.tracking.follow import tracking; tracking('x').__enter__()",
            "mlflow pandas torch matplotlib ray",
        ),
        ("from fedray.core import algorithms; algorithms.names()", f"ray {RARE}"),
    ],
)
def test_nothing_is_imported_before_it_is_needed(does, heavy, tmp_path):
    program = f"""
import sys
from fedray.cli.main import main
sys.stdout = sys.stderr
{does.format(tmp_path / "run")}
print(sorted(set({heavy.split()}) & sys.modules.keys()), file=sys.__stdout__)"""
    env = {**os.environ, "FEDRAY_RESULTS": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not part of the wheel")
def test_the_page_has_a_row_for_every_word():
    rows = re.findall(r"^\| `(\w+)", PAGE.read_text(), re.MULTILINE)
    assert rows == WORDS
