"""The commands of docs/write-a-method.md, in order, at tiny size, with the files that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pages import DOCS, blocks

import fedray
from fedray.cli.main import main as listings
from fedray.config import dump_yaml, parse_yaml
from fedray.config.plugins import use
from fedray.run import main as run
from fedray.storage.run_folder import RunFolder
from fedray.studies.cell import check_cells
from fedray.studies.file import plan_study
from fedray.table import main as table

PAGE = DOCS / "write-a-method.md"
SMALL = ["rounds=1", "local_epochs=1", "data.clients=3", "workers=1"]
VARIABLE = r"'\w+'|mine\.py|/there/\S+|\[2.*?\]|images \.\.\.|\.\.\.|algorithm|net |NameError.*"
TABLE = re.compile(r"^\| `(.*?)` \|", re.MULTILINE)

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not part of the wheel")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    use(())


def small(words: list[str], number: int) -> list[str]:
    samples = [] if "data.source=myimages" in words else ["data.samples=200"]
    partition = [] if any("partition" in word for word in words) else ["data.partition=iid"]
    serial = ["--executor", "serial", "--no-track", "--out", f"run{number}"]
    return [*words, *SMALL, *samples, *partition, *serial]


def _lines(language: str) -> list[str]:
    text = "".join(blocks(PAGE, language)).replace("\\\n", " ")
    return text.splitlines()


@pytest.mark.slow
def test_the_way_to_a_paper_s_table_is_one(monkeypatch, capsys):
    """Every table of it is planned; what is added to the shipped one extends it."""
    own, added = (parse_yaml(text, PAGE) for text in blocks(PAGE, "yaml")[2:])
    Path("mine_table.yaml").write_text(dump_yaml(own))
    assert listings(["new", "method", "mine"]) == 0
    assert listings(["new", "method", "ours", "--prompts"]) == 0
    Path("ours.yaml").write_text(dump_yaml(added))
    Path("cifar10").mkdir()
    monkeypatch.setenv("FEDRAY_DATA", str(Path.cwd()))
    Path("docs").symlink_to(DOCS)
    lines = _lines("bash")
    commands = [line for line in lines if line.startswith("fedray table ")]
    said = []
    for command in commands:
        words = shlex.split(command.partition("fedray table ")[2])
        assert table([*dict.fromkeys([*words, "--plan"])]) == 0, command
        said.append(" ".join(capsys.readouterr().out.split()))
    assert "75 runs, and more where a grid is continued" in " ".join(PAGE.read_text().split())
    assert "75 runs" in said[0]


@pytest.mark.slow
def test_every_command_works_as_it_stands(capsys):
    Path("shuffle.py").write_text(blocks(PAGE, "python")[1])
    Path("lr_check.yaml").write_text(blocks(PAGE, "yaml")[0])
    commands = _lines("")
    assert len(commands) >= 12
    ran = 0
    for number, command in enumerate(commands):
        _, word, *words = shlex.split(command)
        if command.startswith("ray job submit"):
            assert "python -m fedray.run fedavg_digits --plugin mine.py" in command
        elif word == "sweep":
            plan = plan_study("sweep", words[0], plugins=words[2:])
            check_cells(plan)
            assert len(plan.configurations("all")) == 2
        elif word == "run":
            assert run(small(words, number)) == 0, command
            ran += RunFolder(Path(f"run{number}")).read().done
        else:
            assert listings([word, *words]) == 0, command
    assert ran == 6
    assert (
        Path("mystudy/mystudy.yaml").read_text().count(blocks(PAGE, "yaml")[1].splitlines()[1]) == 1
    )


def test_what_is_said_is_said_so():
    """Every sentence of the table stands in the code, but for what it is about."""
    package = Path(fedray.__file__).parent
    files = [*package.glob("config/*.py"), package / "models" / "init.py"]
    code = " ".join(path.read_text() for path in files)
    code = re.sub(r'"\s*f?"', "", code)
    said = TABLE.findall(PAGE.read_text().partition("## When it does not work")[2])
    assert len(said) >= 8
    for sentence in said:
        fixed = [part.strip() for part in re.split(VARIABLE, sentence)]
        for part in fixed:
            assert part in code, (sentence, part)
