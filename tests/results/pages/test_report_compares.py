from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from commands import report as main
from written_runs import groups_in, write_partition, write_run

from fedray.results.comparisons import incompatibilities, method_differences
from fedray.results.pages.page import escape_latex

METHODS = {"fedtsp": 0.8, "fedproto": 0.7}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds each, on the same clients."""
    home = tmp_path_factory.mktemp("compared") / "runs"
    for method, last in METHODS.items():
        for seed in (0, 1):
            folder = home / f"{method}-{seed}"
            changes = {"algorithm": method, "seed": seed}
            write_run(folder, [0.1, last - 0.1, last + 0.01 * seed], changes)
    partition = {"histogram": [[3, 0], [1, 4]], "class_names": ["a cat", "a dog"]}
    write_partition(home / "fedtsp-0", partition)
    return home


# --- what may be compared ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "more", "why"),
    [
        ({}, {"partition": "other"}, "other partitions (seed 0)"),
        ({}, {"data": "other"}, "other images"),
        ({"local_epochs": 9}, {}, "local_epochs (5 and 9)"),
        ({"report.select": "validation"}, {}, "best on test and best on validation"),
        ({"lr": 0.5}, {}, ""),
        ({"model.group": "mlp"}, {}, ""),
    ],
)
def test_only_the_same_data_clients_protocol_and_choice_are_compared(
    changes: dict[str, Any], more: dict[str, Any], why: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "a", [0.1, 0.2])
    write_run(tmp_path / "b", [0.1, 0.3], {"algorithm": "fedproto", **changes}, **more)
    a, b = groups_in(tmp_path).values()
    assert ", ".join(incompatibilities(a, b)) == why


def test_only_what_is_comparable_with_the_best_row_is_compared_and_the_page_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method, epochs in (("fedtsp", 5), ("fedproto", 5), ("local", 9), ("fedavg", 9)):
        for seed in (0, 1):
            changes = {"algorithm": method, "local_epochs": epochs, "seed": seed}
            write_run(tmp_path / f"{method}{seed}", [0.1, 0.02 * len(method) + 0.1 * seed], changes)
    assert main([str(tmp_path), "--out", str(tmp_path / "all")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "not compared with fedproto, local_epochs (5 and 9): fedavg; local" in printed
    page = (tmp_path / "all" / "table.md").read_text()
    compared = page.partition("| reading |")[2].partition("difference to fedproto")[0]
    assert re.findall(r"^\| (\w+) \|", compared, re.M) == ["fedtsp"]


def test_methods_that_were_given_other_models_are_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2])
    write_run(tmp_path / "b", [0.1, 0.3], {"algorithm": "fedavg", "model.group": "mlp"})
    groups = list(groups_in(tmp_path).values())
    assert [member.label for member in groups] == ["fedtsp", "fedavg"]
    assert method_differences(groups) == [
        "methods differ in model.group (fedtsp: digits; fedavg: mlp)"
    ]


def test_a_parameter_that_two_methods_have_with_other_values_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2], {"algorithm.lambda": 10.0})
    write_run(tmp_path / "b", [0.1, 0.3], {"algorithm": {"name": "fedproto", "lambda": 1.0}})
    assert method_differences([*groups_in(tmp_path).values()]) == [
        "methods differ in algorithm.lambda (fedtsp: 10; fedproto: 1)"
    ]


def test_what_is_not_known_to_be_the_same_is_not_compared(tmp_path: Path) -> None:
    for method in METHODS:
        write_run(tmp_path / method, [0.1, 0.2], {"algorithm": method}, data=None)
    a, b = groups_in(tmp_path).values()
    assert incompatibilities(a, b) == ["images without a hash, which may be others"]


def report(*words: str) -> list[dict[str, str]]:
    """The rows of the numbers that a report writes; the last word is its folder."""
    assert main([*words[:-1], "--format", "csv", "--out", words[-1]]) == 0
    with (Path(words[-1]) / "table.csv").open() as file:
        return list(csv.DictReader(file))


def test_rows_are_chosen_and_named(runs: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "t")
    rows = report(str(runs), "--filter", "algorithm=fedtsp", "--filter", "seed=1,7", out)
    assert [(row["row"], row["seed"]) for row in rows] == [("fedtsp", "1")]
    for condition in ("privacy.mode=none", "drop_last=true,false", "lr=0.01,5e-2,0.05"):
        assert len(report(str(runs), "--filter", condition, out)) == 4
    rows = report(str(runs), "--label", "fedtsp=Ours (tau=1)", "--label", "fedproto=FedProto", out)
    assert [row["row"] for row in rows] == ["Ours (tau=1)"] * 2 + ["FedProto"] * 2


def test_a_method_in_several_rows_keeps_the_rest_of_their_labels(tmp_path: Path) -> None:
    for weight in (1, 7):
        write_run(tmp_path / f"{weight}", [0.1, weight / 10], {"algorithm.lambda": weight})
    out = str(tmp_path / "t")
    rows = report(str(tmp_path), "--label", "fedtsp=FedTSP", out)
    assert [row["row"] for row in rows] == ["FedTSP lambda=7", "FedTSP lambda=1"]
    rows = report(str(tmp_path), "--label", "fedtsp lambda=7=strong=7", out)
    assert [row["row"] for row in rows] == ["strong=7", "fedtsp lambda=1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--filter", "sead=1"], "no run has the key. Did you mean 'seed'"),
        (["--filter", "seed=9"], "no run has this value; there are 0, 1"),
        (["--label", "fedtsq=x"], "Did you mean 'fedtsp'"),
        (["--label", "fedtsp=fedproto"], "several rows would have one label"),
    ],
)
def test_what_is_wrong_with_the_words_is_one_sentence(
    words: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs), *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


# --- data sets -----------------------------------------------------------------------------------


def test_means_over_data_sets_and_what_is_computed_of_means(tmp_path: Path) -> None:
    base, novel = {"pets": 0.9, "cars": 0.5}, {"pets": 0.6, "cars": 0.4}
    for data in base:
        numbers = {"accuracy_base": base[data], "accuracy_novel": novel[data]}
        numbers["accuracy_hm"] = 2 * base[data] * novel[data] / (base[data] + novel[data])
        changes = {"data.root": f"/x/{data}"}
        write_run(tmp_path / data, [0.1, 0.5], changes, data=data, metrics=numbers)
    write_run(
        tmp_path / "half", [0.1, 0.5], {"data.root": "/x/pets", "algorithm": "local"},
        data="pets", metrics={"accuracy_base": 0.1, "accuracy_novel": 0.1, "accuracy_hm": 0.1},
    )  # fmt: skip
    metrics = ["--metric", "accuracy_base", "--metric", "accuracy_hm"]
    assert main([str(tmp_path), *metrics, "--out", f"{tmp_path}/t"]) == 0
    lines = (tmp_path / "t" / "table.md").read_text().splitlines()
    heads = [line for line in lines if "| mean |" in line]
    assert len(heads) == 2
    assert heads[1].endswith("| mean | of means |")
    hm = [line for line in lines if line.startswith("| fedtsp |")][-1]
    # HM of the means is 2 * 0.7 * 0.5 / 1.2, the mean of HMs that of 0.72 and 0.4444
    assert hm.endswith("| 0.5822 | 0.5833 |")
    assert any(line.startswith("| local ") and line.endswith("| – | – |") for line in lines)


def test_data_sets_with_other_numbers_of_clients_have_a_mean(tmp_path: Path) -> None:
    for clients, data in ((10, "pets"), (20, "cars")):
        changes = {"data.root": f"/x/{data}", "data.clients": clients, "join.clients": 0}
        write_run(tmp_path / data, [0.1, clients / 100], changes, data=data)
    assert main([str(tmp_path), "--out", f"{tmp_path}/t"]) == 0
    lines = (tmp_path / "t" / "table.md").read_text().splitlines()
    assert any(line.startswith("| fedtsp |") and line.endswith("| 15.00 |") for line in lines)


# --- files ---------------------------------------------------------------------------------------


def test_a_folder_has_a_file_of_each_format(runs: Path, tmp_path: Path) -> None:
    kinds = ("md", "csv", "tex", "html", "svg", "pdf", "png")
    words = [word for kind in kinds for word in ("--format", kind)]
    out, again = tmp_path / "deep" / "report", tmp_path / "again"
    assert main([str(runs), *words, "--out", str(out), "--columns", "1"]) == 0
    tables = {f"table.{kind}" for kind in kinds[:4]}
    figures = {f"by_{what}.{kind}" for what in ("round", "traffic") for kind in kinds[4:]}
    assert {path.name for path in out.iterdir()} == {*tables, *figures, "partition_1.png"}
    tex, svg, pdf, png, page = (
        (out / name).read_bytes()
        for name in ("table.tex", "by_round.svg", "by_round.pdf", "by_round.png", "table.html")
    )
    assert rb"\toprule" in tex
    assert rb"80.5 $\pm$ 6.4" in tex
    assert ET.fromstring(svg).tag.endswith("svg")
    assert (pdf[:4], png[:4]) == (b"%PDF", b"\x89PNG")
    assert b"/Type3" not in pdf  # letters that a publisher can embed
    assert page.startswith(b"<!doctype html>")
    assert main([str(runs), "--format", "svg", "--out", str(again), "--columns", "1"]) == 0
    assert (again / "by_round.svg").read_bytes() == svg
    assert {path.suffix for path in again.iterdir()} == {".svg"}


def test_a_page_shows_the_figures_next_to_it_and_nothing_else(runs: Path, tmp_path: Path) -> None:
    words = ["--format", "html", "--format", "md", "--format", "png", "--out", str(tmp_path)]
    assert main([str(runs), *words]) == 0
    page = (tmp_path / "table.html").read_text()
    addresses = re.findall(r"(?:src|href)\s*=\s*\"([^\"]{0,30})", page)
    assert addresses == ["by_round.png", "by_traffic.png", "partition_1.png"]
    assert all(f"]({address})" in (tmp_path / "table.md").read_text() for address in addresses)
    assert "http" not in page
    assert "<h1>2 configurations on digits</h1>" in page


def test_a_label_is_text_in_every_form(runs: Path, tmp_path: Path) -> None:
    words = [word for kind in ("html", "tex", "md") for word in ("--format", kind)]
    words += ["--out", str(tmp_path), "--label", "fedtsp=<b>50% & A_1|B</b>"]
    assert main([str(runs), *words]) == 0
    page, tex, markdown = (
        (tmp_path / f"table.{kind}").read_text() for kind in ("html", "tex", "md")
    )
    assert "<b>" not in page
    assert r"$<$b$>$50\% \& A\_1\textbar{}B" in tex
    assert r"A_1\|B" in markdown
    assert escape_latex("λ ± 1") == r"$\lambda$ $\pm$ 1"
    assert escape_latex("*ours") == "{*}ours", "after a row's end, a star is no option"
    assert escape_latex("[best] α=-1") == r"{[}best] $\alpha$=-1"
    assert escape_latex("-1.5 ± 0.2") == r"$-$1.5 $\pm$ 0.2"


def test_a_label_is_text_in_figures(runs: Path, tmp_path: Path) -> None:
    labels = ["--label", "fedtsp=_mine for $5 or $6", "--label", r"fedproto=a^b_c"]
    assert main([str(runs), "--format", "svg", "--out", str(tmp_path), *labels]) == 0
    drawn = re.findall(r"<!-- (.*?) -->", (tmp_path / "by_round.svg").read_text())
    assert " _mine for $5 or $6" in drawn
    assert "a^b_c" in drawn


def test_curves_that_are_not_comparable_are_said_to_be_so(tmp_path: Path) -> None:
    for method, epochs in (("fedtsp", 5), ("fedproto", 9)):
        changes = {"algorithm": method, "local_epochs": epochs}
        write_run(tmp_path / method, [0.1, 0.2], changes, metrics={"extra": 0.3})
    words = ["--metric", "local_accuracy", "--metric", "extra", "--format", "svg"]
    assert main([str(tmp_path), "--out", str(tmp_path / "out"), *words]) == 0
    for name in ("by_round", "by_traffic"):
        drawn = (tmp_path / "out" / f"{name}.svg").read_text()
        assert "<!-- not all are comparable: see the table -->" in drawn
