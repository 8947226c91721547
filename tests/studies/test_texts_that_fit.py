"""Before a sweep starts: the texts of every configuration must fit the features."""

from __future__ import annotations

import re

import pytest
from commands import plan_words

from fedray.base.errors import UserError
from fedray.config import dump_yaml
from fedray.studies.cell import check_cells
from fedray.studies.ready import get_ready
from fedray.studies.study import Study

STYLES = {"grid": ["plain", "name", "ensemble"]}


@pytest.fixture
def look(tmp_path, monkeypatch, tiny_bert):
    """`look(space)` gets a sweep ready without Ray, with features as wide as a BERT's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedray.studies.ready._connect", lambda *_, **__: 1)
    (tmp_path / "tune").mkdir()

    def look(space, width=16):
        keys = {"model.feature_dim": width, "data.samples": 200, "data.clients": 2}
        keys["data.partition"] = {"name": "iid"}
        scale = {"experiment": "fedglcl_digits", "set": keys}
        sweep = {"answers": "?", "space": space, "scales": {"laptop": scale}}
        (tmp_path / "tune" / "texts.yaml").write_text(dump_yaml(sweep))
        study = Study(tmp_path / "home", plan_words("sweep", "texts"), tmp_path / "store")
        get_ready(study, check_cells(study.plan), track=False)
        return study.plan.configurations("all")

    return look


def encoders(tiny_bert, **control):
    controls = [{"name": name, **control} for name in ("random", "orthogonal")]
    return {"grid": [{"name": "bert", "path": str(tiny_bert)}, *controls]}


def test_texts_and_controls_by_style_are_nine_configurations_that_can_run(look, tiny_bert):
    space = {"text.encoder": encoders(tiny_bert, per="class"), "text.style": STYLES}
    assert len(look(space)) == 9


def test_more_texts_than_orthogonal_directions_are_given_up(look, tiny_bert, capsys):
    look({"text.encoder": encoders(tiny_bert), "text.style": STYLES})
    said = capsys.readouterr().out
    assert re.search(r"given up: .*style=ensemble.*16 directions for 850 texts.*per=class", said)


def test_another_width_is_given_up_with_the_configuration_or_refused(look, tiny_bert, capsys):
    look({"text.encoder": encoders(tiny_bert, per="class", dim=384)})
    said = capsys.readouterr().out
    assert re.search(r"given up: .*random.*width 384, but model\.feature_dim=16", said)
    message = r"text\.encoder=bert gives prototypes of width 16, but model\.feature_dim=24"
    with pytest.raises(UserError, match=message):
        look({"text.encoder": {"grid": encoders(tiny_bert)["grid"][:1]}}, width=24)
