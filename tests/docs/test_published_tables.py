"""Published tables: verdicts and pages follow from the recorded numbers of each seed."""

from __future__ import annotations

import json
import shutil

import pytest
from pages import ROOT

from _build.published import FOLDER, published, published_pages
from fedray.base.errors import UserError
from fedray.results.difference import config_changes
from fedray.results.record import TableRecord
from fedray.studies.file import plan_study

NAME = "dp2fl_table1"


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / FOLDER / NAME, tmp_path / FOLDER / NAME)
    return tmp_path


def test_an_edited_number_is_refused(copy):
    path = copy / FOLDER / NAME / "table.json"
    tree = json.loads(path.read_text())
    next(iter(tree["runs"].values()))["round"] = 1
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match="damaged or edited"):
        published(copy)


PROSE = ("answers", "glosses", "left_out", "hours", "paper.")


@pytest.mark.parametrize("name", sorted(published(ROOT)))
def test_a_published_table_is_of_todays_file(name):
    """Its runs have other identities: keys that changed none of their numbers were removed."""
    plan = TableRecord.read(ROOT / FOLDER / name / "table.json").plan
    today = plan_study(plan.kind, name, scale=plan.scale)
    changes = config_changes(plan.model_dump(mode="json"), today.model_dump(mode="json"))
    assert [change for change in changes if not change.startswith(PROSE)] == []


def test_a_published_table_made_again_is_itself(copy):
    for path, text in published_pages(published(copy)).items():
        assert text == (copy / path).read_text(), path
