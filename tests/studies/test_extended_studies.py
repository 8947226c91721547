"""Studies that extend studies: merged as experiments are, and whole wherever they are shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import plan_words

from fedray.cli.main import main
from fedray.config import dump_yaml, parse_yaml
from fedray.studies.flow import Request, copy_study_file
from fedray.studies.study import Study

Extend = Callable[..., Path]


@pytest.fixture
def extend(here, write) -> Extend:
    """`extend(text, name)` writes a table of this text; the table tiny is there."""
    write()

    def extend(text: str, name: str = "more") -> Path:
        path: Path = here / "tune" / "tables" / f"{name}.yaml"
        path.write_text(text)
        return path

    return extend


def test_keys_of_a_table_lie_over_those_of_its_base(extend):
    base = plan_words("table", "tiny")
    extend("extends: tiny\nset: {rounds: 1}\nrows: {other: fedavg}\ntuning: {configurations: 4}\n")
    plan = plan_words("table", "more")
    assert plan.name == "more"
    assert list(plan.rows) == ["mine", "other", "local"]
    assert plan.rows["mine"] == base.rows["mine"]
    assert (plan.set, plan.tuning.configurations) == ({"rounds": 1}, 4)
    assert plan.report == base.report


def test_a_base_may_extend_another_and_lie_in_a_folder_beside(extend, here):
    (here / "tune" / "tables" / "shared").mkdir()
    extend("extends: ../tiny\nset: {rounds: 1, lr: 0.5}\nspace: {lr: null}\n", "shared/base")
    extend("extends: shared/base\nset: {rounds: 2}\nrows: {mine: {space: {lr: {grid: [1, 2]}}}}\n")
    plan = plan_words("table", "more")
    assert plan.set == {"rounds": 2, "lr": 0.5}
    assert list(plan.rows["mine"].space) == ["lr"]


def test_scales_are_merged_one_by_one(extend):
    extend("rows: {mine: fedproto}\nscales: {laptop: {set: {rounds: 3}}, desktop: {}}\n", "base")
    extend("extends: base\nscales: {laptop: {set: {lr: 1}}, desktop: {set: {rounds: 9}}}\n")
    assert plan_words("table", "more").set == {"rounds": 3, "lr": 1}
    assert plan_words("table", "more", scale="desktop").set == {"rounds": 9}


def test_the_copy_in_the_results_needs_no_other_file(extend, here):
    path = extend("# What it asks.\nextends: tiny\nset: {rounds: 1}\n")
    plan = plan_words("table", "more")
    study = Study(here / "out", plan, here / "store")
    study.home.mkdir()
    copy_study_file(Request("table", "more"), study)
    copied = here / "out" / "table.yaml"
    text = copied.read_text()
    assert text.startswith("# What it asks.\n# Merged with the files that it extends: tiny.\n")
    path.unlink()
    (here / "tune" / "tables" / "tiny.yaml").unlink()
    assert plan_words("table", str(copied)).model_dump() == {**plan.model_dump(), "name": "table"}


def test_a_table_is_shown_whole(extend, capsys):
    extend("# What it asks.\nextends: tiny\nset: {rounds: 1}\n")
    assert main(["show", "more"]) == 0
    tree = parse_yaml(capsys.readouterr().out.partition("\n\n")[2], "the text")
    assert (tree["set"], tree["space"]) == ({"rounds": 1}, {"lr": {"grid": [0.02, 0.1]}})
    assert "extends" not in tree


def test_a_file_anywhere_extends_a_shipped_table(here):
    Path("mine.yaml").write_text(dump_yaml({"extends": "digits", "rows": {"other": "fedavg"}}))
    plan = plan_words("table", "mine.yaml")
    assert list(plan.rows) == ["fedtsp", "orthogonal", "other", "local", "fedavg", "fedproto"]
    assert plan.answers == plan_words("table", "digits").answers
