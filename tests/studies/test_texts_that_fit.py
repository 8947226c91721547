"""Before a sweep starts: the texts of every configuration must fit the features."""

from __future__ import annotations

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


def test_a_text_encoder_of_another_width_is_refused_before_ray_runs_anything(look, tiny_bert):
    encoder = {"name": "bert", "path": str(tiny_bert)}
    controls = [{"name": name, "per": "class"} for name in ("random", "orthogonal")]
    assert len(look({"text.encoder": {"grid": [encoder, *controls]}, "text.style": STYLES})) == 9
    message = r"text\.encoder=bert gives prototypes of width 16, but model\.feature_dim=24"
    with pytest.raises(UserError, match=message):
        look({"text.encoder": {"grid": [encoder]}}, width=24)
