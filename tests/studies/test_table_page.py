"""The page in all its forms, of runs whose numbers are given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import plan_words
from PIL import Image
from pretended_runs import end, page_of
from sweeps import asked
from written_runs import write_whole

from fedray.base.errors import UserError
from fedray.base.markdown import has_words
from fedray.results.design import Place
from fedray.results.pages import figures
from fedray.results.pages.cells import NOTHING
from fedray.results.pages.page import Section, escape_latex, latex, markdown
from fedray.results.pages.table import draw_table, main_table, table_latex
from fedray.results.record import TableRecord
from fedray.runtime.assembly import read_images
from fedray.storage.metric import Metric
from fedray.storage.run_folder import RunFolder
from fedray.studies.outcome import outcome
from fedray.studies.pages import write_table
from fedray.studies.study import Study
from fedray.table import main

ROWS = {
    "mine": {"algorithm": "fedproto", "label": "Mine & all_of_it"},
    "base": {"algorithm": "fedavg"},
    "null": {"algorithm": "local", "control": "that prototypes help", "space": {"lr": None}},
}
CHANGES = {
    "rows": ROWS,
    "baselines": [],
    "columns": {"Dir(0.1)": {"data.partition.alpha": 0.1}, "Dir(1)": {}},
    "claims": [
        {"better": "mine", "worse": "base", "source": "Table 1"},
        {"better": "base @ Dir(1)", "worse": "mine @ Dir(1)"},
    ],
    "report": {"seeds": [0, 1, 2]},
    "paper": {"source": "a paper", "numbers": {"mine": {"Dir(0.1)": [70, 0.5], "*": 50.25}}},
}

BOTH = ["local_accuracy", "global_accuracy"]


def curve(wanted):
    value = {"mine": 0.7, "base": 0.6, "null": 0.65}[wanted.place.row] + wanted.seed / 1000
    value += wanted.experiment.lr / 10 + (wanted.seed % 2) * {"mine": 0.002}.get(
        wanted.place.row, 0
    )
    return [(0.0, 0.0), (value, value)]


def cells_of(record):
    """Return the header and the rows of a table's first metric, without bold."""
    section = main_table(record, record.shown[0])
    return section.header, [[text.replace("**", "") for text in row] for row in section.rows]


@pytest.fixture
def written(play, here):
    """The book, its record, and its page in Markdown."""
    book = play(curve, **CHANGES)
    found = outcome(book)
    (here / "out").mkdir()
    write_table(book)
    return book, found, (here / "out" / "table.md").read_text()


def test_a_figure_that_cannot_be_written_is_as_it_was(written, here, monkeypatch):
    _, found, _ = written
    with Image.open(here / "out" / "figure.png") as image:
        assert image.width > 800
        assert len(image.convert("P").getcolors(256)) > 10
    assert (here / "out" / "figure.pdf").read_bytes().startswith(b"%PDF")
    before = (here / "out" / "figure.png").read_bytes()

    def fail(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        draw_table(found, here / "out" / "figure.png")
    assert (here / "out" / "figure.png").read_bytes() == before


def test_rows_with_one_label_are_two_rows_of_table_and_figure(play, here, monkeypatch):
    rows = {name: {"algorithm": name, "label": "Same"} for name in ("fedproto", "local")}
    changes = {**CHANGES, "rows": rows, "claims": [], "paper": None}
    record = outcome(play(lambda wanted: [(0.0, 0.0), (0.5, 0.5)], **changes))
    names = ["Same [fedproto]", "Same [local]"]
    assert [row[0] for row in cells_of(record)[1]] == names
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.append(figure))
    draw_table(record, here / "figure.png")
    assert [text.get_text() for text in drawn[0].axes[0].get_yticklabels()] == names


def test_the_papers_mean_stands_beside_ours(play):
    said = {"mine": {"Dir(0.1)": 70, "mean": [60.5, 0.2]}, "base": {"*": 40.0}, "null": 30.0}
    for given, shown, of_null in (
        (
            said,
            ["method", "Dir(0.1)", "paper", "Dir(1)", "paper", "mean", "paper"],
            {2: "30", 4: "30"},
        ),
        ({"mine": {"mean": 61}}, ["method", "Dir(0.1)", "Dir(1)", "mean", "paper"], {4: NOTHING}),
    ):
        book = play(curve, **{**CHANGES, "paper": {"source": "a paper", "numbers": given}})
        found = outcome(book)
        header, (mine, base, null) = cells_of(found)
        assert header == shown
        assert {index: null[index] for index in of_null} == of_null
        assert (mine[-1], null[-1]) == ("60.5 ± 0.2" if given is said else "61", NOTHING)
        assert base[-1] == NOTHING  # what is of any other column is not of the mean


def test_a_table_of_one_column_has_the_papers_mean_there(play):
    paper = {"source": "a paper", "numbers": {"mine": {"mean": 61}}}
    changes = {
        **CHANGES,
        "columns": None,
        "claims": [{"better": "mine", "worse": "base"}],
        "paper": paper,
    }
    found = outcome(play(curve, **changes))
    header, (mine, *_) = cells_of(found)
    assert (header, mine[2]) == (["method", "digits", "paper"], "61")


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({}, "digits"),
        ({"set": {"data": {"source": "cifar100"}}}, "CIFAR-100"),
        ({"set": {"data.source": "image_folder", "data.root": "/data/flowers"}}, "flowers"),
        ({"columns": {"few": {"data.clients": 2}}}, "few"),
    ],
)
def test_the_only_column_has_the_name_of_its_images(write, changes, title):
    write(**changes)
    plan = plan_words("table", "tiny")
    assert plan.only_column == title


def test_a_row_has_the_title_of_its_method_unless_it_has_a_label(write, plugin):
    plugin.write_text(plugin.read_text().replace("Doubtful", "FedDoubt"))
    rows = {"doubtful": {}, "mine": {"algorithm": "fedproto"}, "fedavg": {"label": "Average"}}
    write(rows=rows)
    plan = plan_words("table", "tiny", plugins=[str(plugin)])
    labels = {name: row.label for name, row in plan.rows.items()}
    assert labels == {"doubtful": "FedDoubt", "mine": "mine", "fedavg": "Average", "local": "Local"}


@pytest.mark.parametrize(
    ("numbers", "bold"),
    [
        ({"mine": 0.7, "base": 0.6}, ["mine"]),  # holds
        ({"mine": 0.6, "base": 0.7}, ["FedAvg"]),  # refuted
        ({"mine": 0.7001, "base": 0.7}, []),  # undecided
    ],
)
def test_the_best_number_is_bold_where_claims_decide(play, numbers, bold):
    def curve(wanted):
        noise = (wanted.seed * 7 % 5 - 2) / 100 if wanted.place.row == "mine" else 0.0
        return [(0.0, 0.0), (0.5, numbers[wanted.place.row] + noise)]

    rows = {"mine": {"algorithm": "fedproto"}, "base": {"algorithm": "fedavg", "label": "FedAvg"}}
    changes = {"rows": rows, "baselines": [], "report": {"seeds": [0, 1, 2, 3, 4]}}
    book = play(curve, claims=[{"better": "mine", "worse": "base"}], **changes)
    text = table_latex(outcome(book))
    lines = [line for line in text.splitlines() if "textbf" in line]
    assert [line.split(" &")[0].strip() for line in lines] == bold
    assert ("Bold: better than every other row" in text) == bool(bold)


@pytest.mark.parametrize(
    "claim", [{"better": "base", "worse": "mine"}, {"better": "mine", "worse": "base"}]
)
def test_where_less_is_better_the_smallest_number_is_bold(play, claim):
    changes = {"rows": {"mine": {"algorithm": "fedproto"}, "base": {"algorithm": "fedavg"}}}
    changes |= {"baselines": [], "report": {"seeds": [0, 1, 2, 3, 4]}, "claims": [claim]}

    def curve(wanted):
        noise = (wanted.seed * 7 % 5 - 2) / 100 if wanted.place.row == "mine" else 0.1
        return [(0.0, 0.0), (0.5, 0.6 + noise)]

    record = outcome(play(curve, **changes))
    losses = {"local_accuracy": Metric("local_accuracy", "nats", "min")}
    text = table_latex(TableRecord(**{**dict(record), "metrics": losses}))
    [line] = [line for line in text.splitlines() if "textbf" in line]
    assert line.strip().startswith("mine &")


def test_nothing_is_bold_among_rows_that_no_claim_compares(play):
    def curve(wanted):
        return [(0.0, 0.0), (0.5, {"mine": 0.9, "base": 0.5, "null": 0.4}[wanted.place.row])]

    changes = {
        **CHANGES,
        "columns": None,
        "paper": None,
        "claims": [{"better": "mine", "worse": "base"}],
    }
    assert "textbf" not in table_latex(outcome(play(curve, **changes)))


def test_a_column_without_any_word_or_number_counts_as_numbers():
    rows = [["a", "– over b", "failed", "x", "12-20"], ["b", "", "3 ± 1", "2", "lr (lowest)"]]
    assert has_words(["", "1", "2", "3", "4"], rows) == [True, False, False, False, False]
    rows.append(["c", "–", "–", "y", "no"])
    assert has_words(["", "1", "2", "3", "4"], rows) == [True, False, False, True, True]
    assert escape_latex("50 % of #1_a ± {x}") == r"50 \% of \#1\_a $\pm$ \{x\}"
    lines = latex(Section("", (), ["", "n", "what"], [["a", "1", "word"]]), "x")
    assert "{tabular}{lrl}" in lines


def test_numbers_that_were_chosen_on_test_are_marked(play):
    book = play(curve, **{**CHANGES, "report": {"seeds": [0, 1, 2], "select": "test"}})
    text = page_of(book)
    (line,) = (line for line in text.splitlines() if line.startswith("| base |") and "±" in line)
    assert line.count("†") == 3
    assert "chosen on TEST images (†)" in text
    assert r"$^\dagger$" in table_latex(outcome(book))


def test_a_mean_over_columns_says_how_many_seeds_it_lacks(play, here):
    def lost(wanted):
        gone = wanted.place == Place("null", "Dir(1)") and wanted.seed == 2
        return None if gone else curve(wanted)

    book = play(lost, **CHANGES)
    found = outcome(book)
    header, lines = cells_of(found)
    rows = {cells[0]: cells for cells in lines}
    assert header[-1] == "mean"
    assert [("(1 failed)" in text) for text in rows["null (control)"][1::2]] == [False, True, True]


def test_a_table_of_which_nothing_is_there_yet_is_a_page_too(play, here):
    book = play(lambda wanted: None, **CHANGES)
    (here / "out").mkdir()
    text = markdown(write_table(book))
    assert "failed" in text
    assert "no runs" in text
    assert not (here / "out" / "figure.png").exists()
    assert "![" not in text


def test_a_page_that_is_written_in_between_says_so(here, write):
    write(**CHANGES)
    book = Study(here / "out", plan_words("table", "tiny"), here / "store")
    while sum(state.phase == "over" for state in book.states) < 2:
        end(book, book.ask(), curve)
    text = page_of(book)
    assert "NOT FINISHED: 4 of 6 cells are still to be run" in text
    assert "no runs" in text


def test_columns_that_are_numbers_are_drawn_as_curves(play, here, monkeypatch):
    changes = {**CHANGES, "columns": None, "claims": None, "paper": None}
    changes |= {"rows": {"mine": ROWS["mine"]}, "curve": {"algorithm.lambda": [1, 2, 100]}}
    book = play(curve, **changes)
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.append(figure))
    draw_table(outcome(book), here / "figure.png")
    (axes,) = drawn[0].axes
    assert axes.get_xscale() == "symlog"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "100"]
    assert list(axes.lines[0].get_xdata()) == [1, 2, 100]


# --- the command ----------------------------------------------------------------------------------


def test_a_table_of_runs_that_are_there_needs_no_ray(play, here, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    book = play(curve, **CHANGES)
    (here / "results").mkdir()
    (here / "store").rename(here / "results" / "store")
    assert main(["tiny", "--out", "again", "--no-track"]) == 0
    out = capsys.readouterr().out
    said = f"{len(book.runs)} runs ({len(book.runs)} of them existed before)"
    assert said in " ".join(out.split())
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("page: "))
    assert "**" not in out
    assert (here / "again" / "table.md").exists()
    assert (here / "again" / "table.yaml").read_text()
    assert main(["tiny", "--out", "again", "--no-track"]) == 0
    assert "is replaced" not in capsys.readouterr().out


def test_runs_of_other_images_than_there_are_now_are_not_taken(play, here, capsys):
    book = play(curve, **CHANGES)
    store = here / "results" / "store"
    store.parent.mkdir(parents=True)
    (here / "store").rename(store)
    wanted = next(iter(book.runs.values())).spec
    images, folder = read_images(wanted.experiment.data).sha256, store / wanted.key
    for content, code in ((images, 0), ("f" * 64, 2)):
        identity = wanted.experiment.identity(content)
        with_facts(folder, data_sha256=content, identity=identity)
        assert main(["tiny", "--plan"]) == code
        error = capsys.readouterr().err
        said = "error: the images, or other files that the experiment names, have changed "
        assert error.startswith(said) == (code == 2)
        assert error.count("\n") == (code == 2)
    assert main(["tiny", "--out", "again", "--no-track"]) == 2
    assert f"{folder}; restore the files, or remove these folders" in capsys.readouterr().err
    assert not (here / "again").exists()


def with_facts(folder: Path, **facts: Any) -> None:
    """Write other facts into a run's result."""
    run = RunFolder(folder).read()
    write_whole(folder, replace(run, info=replace(run.info, **facts)))


def test_a_study_whose_file_has_changed_is_the_new_one_and_says_so(here, write, capsys):
    write()
    begun = asked(["tiny"])
    begun.began = "2026-01-01T00:00:00"
    begun.write()
    assert begun.home == here / "results" / "tables" / "tiny" / "laptop"
    assert asked(["tiny"]).began == begun.began
    assert "is replaced" not in capsys.readouterr().out
    write(report={"seeds": [5, 6]})
    book = asked(["tiny"])
    assert (book.plan.report.seeds, book.began != begun.began) == ([5, 6], True)
    assert "its table had other settings (report.seeds: " in capsys.readouterr().out
    tables = here / "tune" / "tables"
    (tables / "other.yaml").write_text((tables / "tiny.yaml").read_text())
    with pytest.raises(UserError, match="holds table tiny; name another folder"):
        asked(["other", "--out", str(begun.home)])


def test_the_command_that_makes_a_table_again_names_its_plugins(plugin, write):
    from fedray.cli.dry_run import check_command

    write(rows={"doubtful": None})
    words = ["tiny", "batch_size=8", "--plugin", "mine.py", "--no-track"]
    book = asked(words)
    assert book.command == "python -m fedray.table tiny batch_size=8 --plugin mine.py"
    labels = [each.label for each in check_command(book.command)]
    assert labels[0] == "doubtful lr=0.02"


HOSTILE = "<img src=x>\x1b[31m\\input{/etc/passwd}$$%"


def test_names_of_strangers_are_text_on_every_page(play, here):
    rows = {**ROWS, "mine": {"algorithm": "fedproto", "label": HOSTILE}}
    book = play(curve, **{**CHANGES, "rows": rows})
    (here / "out").mkdir()
    write_table(book)
    pages = {name: (here / "out" / f"table.{name}").read_text() for name in ("md", "html", "tex")}
    assert all("\x1b" not in text for text in pages.values())
    assert "&lt;img src=x" in pages["html"]
    assert "<img src=x" not in pages["html"] + pages["md"].replace("\\<", "")
    assert r"\input{" not in pages["tex"]
    assert r"\$\$\%" in pages["tex"]
