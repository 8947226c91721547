"""A study's plan.json cannot send runs to a folder that is not the store of its results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedray.errors import UserError
from fedray.storage.json_files import sealed, unsealed
from fedray.studies.study import FILE, Study


@pytest.fixture
def study(play) -> Study:
    """A study that has ended, and its plan.json."""
    book = play(lambda wanted: [(0.0, 0.0), (0.5, 0.5), (0.4, 0.4)])
    book.write()
    return book


def forge(study: Study, store: Path) -> None:
    path = study.home / FILE
    tree = unsealed(json.loads(path.read_text()))
    path.write_text(json.dumps(sealed({**tree, "store": str(store)})))


@pytest.mark.parametrize("name", ["elsewhere", "elsewhere/store", "store"])
def test_a_store_outside_the_results_is_refused(study, tmp_path_factory, name):
    outside = tmp_path_factory.mktemp("stranger") / name
    outside.mkdir(parents=True, exist_ok=True)
    forge(study, outside)
    with pytest.raises(UserError, match=r"plan\.json names the runs in .*, which is not the store"):
        Study.read(study.home)
    assert list(outside.iterdir()) == []


def test_a_link_to_another_folder_is_no_store(study, tmp_path_factory):
    outside = tmp_path_factory.mktemp("stranger")
    link = study.home / "store"
    link.symlink_to(outside)
    forge(study, link)
    with pytest.raises(UserError, match=r"is a link to .*, outside"):
        Study.read(study.home)


def test_the_store_of_its_results_is_read(study):
    assert Study.read(study.home).store == study.store.resolve()
