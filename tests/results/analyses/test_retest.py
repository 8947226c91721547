"""Finished runs tested again: as if they had been trained so, and nothing else may change."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import analyse as main
from commands import report as fedray_report

from fedray.run import main as fedray_run
from fedray.storage.run_folder import RunFolder

SERIAL = ["--executor", "serial", "--no-track"]
RUN = ["fedmgp_clip", *SERIAL, "data.image_size=8", "rounds=2", "eval_every=2", "lr=5"]
RUN += ["data.clients=3", "data.samples=200", "local_epochs=1", "algorithm.selected=1"]
QUICK = ["local_digits", *SERIAL, "local_epochs=1", "data.clients=3", "data.samples=300"]


def last(folder: Path):
    return RunFolder(folder).read().rounds[-1]


def test_other_strategies_on_one_model_are_those_of_runs_trained_with_them(
    tiny_clip, tmp_path, capsys
):
    clip = f"model.clip={{name: openclip, path: {tiny_clip}}}"
    for how in ("logits", "max_logits"):
        words = [clip, f"algorithm.inference={how}", "--out", str(tmp_path / how)]
        assert fedray_run([*RUN, *words]) == 0
    out, trained = tmp_path / "out", tmp_path / "logits"
    settings = ["", "algorithm.inference=max_logits", "algorithm.inference=group algorithm.group=1"]
    words = [word for each in settings for word in ("--with", each)]
    assert main(["retest", str(trained), *words, "--out", str(out)]) == 0
    (home,) = (path for path in out.iterdir() if path.is_dir())
    again, surest = home / "as_before", home / "algorithm.inference=max_logits"
    group = home / "algorithm.inference=group_algorithm.group=1"
    for found, expected in ((again, trained), (surest, tmp_path / "max_logits")):
        kept, now = last(expected), last(found)
        assert now.metrics == kept.metrics
        assert now.per_client == kept.per_client
        assert (now.up, now.down) == (kept.up, kept.down)
    assert last(group).metrics != last(surest).metrics
    source, result = RunFolder(trained).read(), RunFolder(surest).read()
    assert result.info.retested == {"folder": str(trained), "identity": source.info.identity}
    assert result.info.identity == RunFolder(tmp_path / "max_logits").read().info.identity
    assert [each.round for each in result.rounds] == [2]
    assert fedray_report([str(out)]) == 0
    assert "group" in capsys.readouterr().out
    assert main(["retest", str(trained), "--with", "lr=0.1", "--out", str(tmp_path / "x")]) == 2
    assert "lr=0.1 affects training" in capsys.readouterr().err


def test_a_global_model_on_every_domain(tmp_path):
    data = ["data.source=shapes", "data.partition=domains", "data.test=official", "data.clients=4"]
    run = ["fedavg_shapes", *SERIAL, *data, "model.group=cnn2", "rounds=1", "local_epochs=1"]
    assert fedray_run([*run, "batch_size=100", "--out", str(tmp_path / "run")]) == 0
    run = str(tmp_path / "run")
    assert (
        main(["retest", run, "--with", "data.every_domain=true", "--out", str(tmp_path / "out")])
        == 0
    )
    (found,) = (tmp_path / "out").glob("*/*")
    before, after = last(tmp_path / "run").metrics, last(found).metrics
    assert before.items() <= after.items()
    assert after["everyone_accuracy_night"] == before["accuracy_night"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "local_epochs=3"], "local_epochs=3 affects training"),
        (["--with", "algorithm.taau=3"], "unknown key 'taau'"),
        ([], "Missing option '--with'"),
        (["--with", "", "--with", ""], "would be written to"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(words, message, tmp_path, refused):
    run = tmp_path / "run"
    assert fedray_run([*QUICK, "rounds=1", "--out", str(run)]) == 0
    assert message in refused("retest", run, *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
