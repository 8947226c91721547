"""Results of the second edition become results of the third, once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fedray.__main__ import main
from fedray.config import load_experiment, read_mapping
from fedray.errors import UserError
from fedray.records import RunFolder
from fedray.studies.plan import run_key

SECOND = Path(__file__).parent / "second_edition"


@pytest.fixture
def old(tmp_path) -> Path:
    """A folder with a finished run and one that was killed after round 2 of 4."""
    return Path(shutil.copytree(SECOND, tmp_path / "old"))


@pytest.mark.parametrize("name", ["finished", "killed"])
def test_no_command_reads_the_second_edition(old, capsys, name):
    with pytest.raises(UserError, match=f"convert it once with fedray convert {old / name}"):
        RunFolder(old / name).read()
    assert main(["report", str(old / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_finished_run(old, capsys):
    before = json.loads((old / "finished" / "result.json").read_text())
    assert main(["convert", str(old / "finished")]) == 0
    folder = RunFolder(old / "finished")
    run = folder.read()
    assert capsys.readouterr().out == f"{folder.path}: 2 rounds\n1 converted\n"
    assert folder.is_finished
    assert run.started is not None
    assert run.info.identity != before["identity"]
    experiment = load_experiment(read_mapping(folder.config))
    assert run.info.identity == experiment.identity(before["data_sha256"])
    assert (run.info.data_sha256, run.info.versions) == (before["data_sha256"], before["versions"])
    assert run.costs.wall_seconds == before["wall_seconds"]
    for done, was in zip(run.rounds, before["rounds"], strict=True):
        per_client = was["metrics"].pop("per_client")
        assert done.metrics == was["metrics"]
        assert {str(client): value for client, value in done.per_client.items()} == per_client
        assert done.up.bytes == was["up_bytes_by_kind"]
        assert done.down.params == was["down_params_by_kind"]
    assert run.final.local_accuracy == before["final"]["local_accuracy"]
    assert (
        {"text_similarity"} == folder.read_matrices().keys() < folder.read_matrices("first").keys()
    )


def test_a_killed_run_has_the_rounds_of_both_files(old, capsys):
    assert main(["convert", str(old)]) == 0
    run = RunFolder(old / "killed").read()
    assert [done.round for done in run.rounds] == [0, 1, 2]
    assert not RunFolder(old / "killed").is_finished
    assert "3 rounds; the run is not finished and cannot be resumed" in capsys.readouterr().out
    assert run.costs.wall_seconds > 0


def test_once(old, capsys):
    assert main(["convert", str(old)]) == 0
    files = {path: path.read_bytes() for path in old.rglob("*.json*")}
    capsys.readouterr()
    assert main(["convert", str(old)]) == 0
    assert capsys.readouterr().out == "there is nothing to convert\n"
    assert {path: path.read_bytes() for path in old.rglob("*.json*")} == files


def test_a_tables_run_is_named_after_its_new_identity(old):
    runs = old / "tables" / "runs"
    runs.mkdir(parents=True)
    (old / "finished").rename(runs / "0123456789ab")
    assert main(["convert", str(old)]) == 0
    (place,) = runs.iterdir()
    assert place.name == run_key(load_experiment(read_mapping(place / "config.yaml")))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tree: tree | {"schema": 2}, "has schema 2; only schema 4"),
        (lambda tree: tree | {"seed": 9}, "cannot be converted: .*does not fit its checksum"),
    ],
)
def test_what_cannot_be_converted_is_one_sentence(old, capsys, change, reason):
    path = old / "finished" / "result.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    before = path.read_bytes()
    assert main(["convert", str(old / "finished")]) == 2
    printed = capsys.readouterr().err
    assert re.search(reason, printed)
    assert printed.count("\n") == 1
    assert path.read_bytes() == before
