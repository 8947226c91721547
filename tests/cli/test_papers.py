"""The papers' page: every command resolves, and runs at a tiny size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import study_tree
from stand_ins import Tiny

from _build.papers import papers_page
from fedray.base.errors import UserError
from fedray.base.shipped import files
from fedray.cli.dry_run import check_command, split_command
from fedray.cli.main import main
from fedray.cli.papers import Item, PaperFile, numbers_of, read_papers, select_items
from fedray.results.printed_numbers import lines_of, numbers_of_paper, printed_numbers


class PaperCommand(NamedTuple):
    """A command of an item: the paper's name, the item's, the scale, and the command line."""

    paper: str
    item: str
    scale: str
    words: str


def every_command(papers: Mapping[str, PaperFile]) -> list[PaperCommand]:
    """Return the commands of all papers."""
    return [
        PaperCommand(name, item.item, scale, command)
        for name, paper in papers.items()
        for item in paper.items
        for scale, command in item.commands()
    ]


COMMANDS = every_command(read_papers())
SHORT = 1
"""Commands of each paper, the ends of each sweep, that are run by default."""

GOOD = """
title: FedX
paper: "Somebody, arXiv:2601.00001"
order: [Table 1, Fig. 2]
items:
  - item: Table 1
    asks: "Which?"
    measure: local_accuracy
    laptop: ["python -m fedray.run local_digits seed=3"]
    paper: ["python -m fedray.sweep fedtsp_lambda --scale paper"]
  - item: Fig. 2
    asks: "How much?"
    measure: "cost's table"
    laptop: [python -m fedray cost local_digits]
    offline: "Nothing."
"""


@pytest.fixture
def page_of(tmp_path, monkeypatch):
    """`page_of(text)` makes a folder with one paper's file the only one; returns the file."""

    def page_of(text: str) -> Path:
        (tmp_path / "papers").mkdir(exist_ok=True)
        file = tmp_path / "papers" / "fedx.yaml"
        file.write_text(text)
        monkeypatch.setattr("fedray.cli.papers.PAPERS", file.parent)
        monkeypatch.setattr("fedray.cli.papers.files", lambda kind: {})
        return file

    return page_of


@pytest.fixture
def every_root(tmp_path, monkeypatch):
    """Every data.root is an empty folder."""

    def found(root: str) -> Path:
        folder = tmp_path / "data" / Path(root).name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    monkeypatch.setattr("fedray.config.resolution.resolve_root", found)


# --- the file ------------------------------------------------------------------------------------


def test_a_file_is_read_in_its_order(page_of):
    page_of(GOOD)
    paper = read_papers()["fedx"]
    assert [item.item for item in paper.items] == ["Table 1", "Fig. 2"]
    assert paper.items[1].paper == []
    found = every_command(read_papers())
    assert [(each.paper, each.item, each.scale) for each in found] == [
        ("fedx", "Table 1", "laptop"),
        ("fedx", "Table 1", "paper"),
        ("fedx", "Fig. 2", "laptop"),
    ]


def test_the_page_has_a_line_for_every_item(page_of):
    page_of(GOOD)
    text = papers_page()
    assert "scenario of the papers, 2 in all" in text
    assert "## FedX\n\nSomebody, [arXiv:2601.00001](https://arxiv.org/abs/2601.00001); `" in text
    assert "| Table 1 | Which? | laptop, paper |" in text


# --- the command ---------------------------------------------------------------------------------


def test_papers_lists_shows_and_refuses(page_of, capsys):
    page_of(GOOD)
    assert main(["papers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert " ".join(lines[1].split()) == "Table 1 python -m fedray.run local_digits seed=3"
    assert main(["papers", "FEDX", "fig. 2"]) == 0
    shown = capsys.readouterr().out
    assert "How much?" in shown
    assert "Table 1" not in shown
    assert main(["papers", "fedy"]) == 2
    assert capsys.readouterr().err == "error: there is no paper 'fedy'. Did you mean 'fedx'?\n"
    assert main(["papers", "fedx", "Table 2"]) == 2
    assert "has no item 'Table 2'. Did you mean 'Table 1'?" in capsys.readouterr().err


def test_a_long_title_is_wrapped_at_80_columns(page_of, capsys):
    page_of(GOOD.replace("title: FedX", f"title: FedX {'of many words ' * 9}end"))
    assert main(["papers"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "items"),
    [
        ("table 1", ["Table 1"]),
        ("fig 2", ["Fig. 2"]),
        ("TABLE", ["Table 1", "Table 13, Figs. 3, 4"]),
        ("table 13", ["Table 13, Figs. 3, 4"]),
    ],
)
def test_an_item_is_found_by_its_beginning(words, items):
    names = ["Table 1", "Fig. 2", "Table 13, Figs. 3, 4"]
    own = [Item(item=name, asks="?", measure="m") for name in names]
    paper = PaperFile(title="FedX", paper="Somebody", order=names, items=own)
    assert [
        item.item for item in select_items({"fedx": paper}, "fedx", words)["fedx"].items
    ] == items
    with pytest.raises(UserError, match="has no item 'tab'"):
        select_items({"fedx": paper}, "fedx", "tab")


def test_an_item_says_what_this_machine_lacks(page_of, capsys, monkeypatch):
    monkeypatch.delenv("FEDRAY_DATA", raising=False)
    page_of(GOOD.replace("laptop: [python -m fedray cost", "printed: [python -m fedray cost"))
    assert main(["papers", "fedx", "Table 1"]) == 0
    assert "missing at paper: " in capsys.readouterr().out
    assert main(["papers", "fedx", "Fig. 2"]) == 0
    assert "missing" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python -m fedray.run no_such", "no_such"),
        ("python -m fedray.run local_digits rounds=0", "rounds"),
        ("python -m fedray.run local_digits --executer ray", "No such option .--executer"),
        ("python -m fedray.run", "name an experiment"),
        ("python -m fedray.sweep no_such", "no_such"),
        ("python -m fedray.sweep fedtsp_lambda --scale huge", "'huge' is not one of"),
        ("python -m fedray.sweep fedtsp_lambda algorithm.lambda=7", "is tuned, and set by"),
        ("python -m json.tool x", "is no command of fedray"),
        ("python -m fedray lss", "there is no command 'lss'. Did you mean 'ls'"),
    ],
)
def test_a_command_is_refused_as_it_would_be(command, said):
    with pytest.raises(UserError, match=said):
        check_command(command)


def test_variables_before_a_command_are_no_words_of_it():
    found = split_command("FEDRAY_DATA=/data SEED=1 fedray report 'a b'")
    assert found == ("report", ["a b"])


# --- the papers ----------------------------------------------------------------------------------


def label(command: PaperCommand) -> str:
    return f"{command.paper}-{command.item}-{command.scale}".replace(" ", "_")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=label)
def test_every_command_resolves(every_root, command):
    asked = check_command(command.words)
    scale = "paper" if command.scale == "printed" else command.scale
    for each in asked:
        if scale != "desktop":  # its tables take experiments of the other scales
            assert each.experiment.scale == scale, command.words


def test_every_table_answers_an_item_at_each_of_its_scales():
    commands = [each.words for each in COMMANDS]
    for name, path in files("tables").items():
        tree = study_tree(path)
        if "_" in name and "not in the paper" not in tree["answers"]:
            for scale in tree["scales"]:
                start = f"python -m fedray.table {name} --scale {scale}"
                assert any(command.startswith(start) for command in commands), start


def groups() -> dict[str, list[str]]:
    """The commands of each item and scale, in their order: one may read what another wrote."""
    found: dict[str, list[str]] = {}
    for command in COMMANDS:
        found.setdefault(label(command), []).append(command.words)
    return found


@pytest.fixture
def tiny(tmp_path, tiny_clip, letter_bert, monkeypatch, every_root):
    """What runs commands at a tiny size, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("fedray.config.resolution.resolve_root", found_or_made(tmp_path))
    return Tiny(tmp_path, tiny_clip, letter_bert)


def found_or_made(home: Path):
    """As `every_root`, but for folders that are there."""

    def found(root: str) -> Path:
        if Path(root).is_absolute() and Path(root).is_dir():
            return Path(root)
        folder = home / "data" / Path(root).name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    return found


def short() -> list[str]:
    """A few items of each paper, at the paper's scale."""
    found: list[str] = []
    for paper in read_papers():
        own = [
            name for name in groups() if name.startswith(f"{paper}-") and name.endswith("-paper")
        ]
        found += own[:: max(len(own) // SHORT, 1)][:SHORT]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", short())
def test_a_few_items_run_at_a_tiny_size(tiny, name):
    run_all(tiny, name, most=1)


def followed() -> list[str]:
    """Return the items as printed whose commands read results: reports and analyses."""
    return [
        name
        for name, commands in groups().items()
        if name.endswith("-printed")
        and any(split_command(command)[0] in ("report", "analyse") for command in commands)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", followed())
def test_commands_that_read_results_work_on_those_of_a_tiny_run(tiny, name):
    run_all(tiny, name, most=3)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", groups())
def test_every_item_runs_at_a_tiny_size(tiny, name):
    run_all(tiny, name)


def run_all(tiny: Tiny, name: str, most: int | None = None) -> None:
    """Run an item's commands at one scale."""
    for command in groups()[name]:
        tiny.run(command, most)
    print("\n".join(sorted(tiny.said)))


def test_an_item_about_some_rows_of_a_table_runs_those():
    items = {one.item: one for one in read_papers()["fedglcl"].items}
    for scale in ("laptop", "paper", "printed"):
        commands = getattr(items["Table 9"], scale)
        picked = f"fedray.table fedglcl_domains --scale {scale} --rows fedglcl,name,ensemble"
        assert f"python -m {picked}" in commands
        assert not any("fedglcl_table9" in one and "--rows" in one for one in commands)
    assert numbers_of(items["Table 9"]) == 6


DESCRIPTIVE = {"Table 5", "Table 6", "Table 7", "Table 8"}
"""FedGLCL's tables of its data sets and networks, which no run answers."""


def test_every_table_with_numbers_is_an_item():
    counts = {}
    for name, paper in read_papers().items():
        numbers = numbers_of_paper(name)
        counts[name] = len(numbers)
        parts = {part for one in paper.items for part in one.item.split(", ")}
        tables = {n.item.partition(" (")[0] for n in numbers if n.item.startswith("Table")}
        assert tables - parts == (DESCRIPTIVE if name == "fedglcl" else set())
        assert max(map(len, lines_of(numbers))) <= 80
    assert counts == {"fedtsp": 490, "fedglcl": 464, "dp2fl": 231, "fedmgp": 903}


def test_an_item_shows_what_its_paper_prints(capsys):
    assert main(["papers", "fedmgp", "Table 9"]) == 0
    assert "Table 9, 90 numbers in %:" in capsys.readouterr().out
    assert main(["papers", "fedtsp", "Table 2"]) == 0
    assert "Table 2, 108 numbers in %:" in capsys.readouterr().out
    domainnet = printed_numbers("fedglcl", "Table 1, DomainNet")
    assert {number.column.partition(" | ")[0] for number in domainnet} == {"DomainNet"}
