"""A run and its folder: what is checked, kept and carried over when it goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from rounds import serial
from written_runs import write_whole

from fedray.base.errors import UserError
from fedray.core import algorithms
from fedray.results.analyses.extra_step import reopen
from fedray.run import main
from fedray.runtime.resolve import resolve
from fedray.runtime.session import Session
from fedray.storage import states
from fedray.storage.environment import environment
from fedray.storage.run import Costs
from fedray.storage.run_folder import RunFolder, RunWriter
from fedray.storage.states import Commit, latest_round
from fedray.studies.ready import check_current

QUICK = ["rounds=3", "local_epochs=1", "data.clients=3", "data.samples=300"]


def session(out: Path, *assignments: str) -> Session:
    experiment = resolve("local_digits", [*QUICK, *assignments])
    return serial(experiment, out)


def interrupted(out: Path, *assignments: str) -> RunFolder:
    """The folder of a run that was stopped after round 1."""
    rounds = session(out, *assignments).rounds()
    assert [next(rounds).round, next(rounds).round] == [0, 1]
    rounds.close()
    return RunFolder(out)


def rewritten(folder: RunFolder, **info: Any) -> None:
    """Write other facts into run.json."""
    folder.write_head(replace(folder.read_head(), **info), folder.partition())


def test_costs_go_on_where_the_run_stopped(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        costs = Costs(1000.0, 77.0, 2**50, 2**30)
        patched.setattr(Session, "_costs_after", lambda self, done: costs)
        folder = interrupted(tmp_path)
    assert [done.round for done in session(tmp_path).rounds()] == [2, 3]
    costs = folder.read().costs
    assert 1000 < costs.wall_seconds < 1500
    assert (costs.startup_seconds, costs.peak_rss_bytes) == (77.0, 2**50)
    assert costs.peak_device_bytes == 2**30


def test_the_most_memory_that_clients_use_on_a_device_is_recorded(tmp_path, monkeypatch):
    used = iter([0, 9_000, 8_000])
    monkeypatch.setattr("fedray.runtime.serial.peak_device_memory", lambda device: next(used))
    assert [done.round for done in session(tmp_path, "rounds=2").rounds()] == [0, 1, 2]
    assert RunFolder(tmp_path).read().costs.peak_device_bytes == 9_000


def test_a_run_that_is_resumed_in_another_environment_says_so(tmp_path, caplog):
    folder, now = interrupted(tmp_path), environment(threads=1)
    then = replace(now, versions={**now.versions, "torch": "0.1", "ray": "0.1"}, hardware="another")
    rewritten(folder, environment=then)
    rounds = session(tmp_path).rounds()
    assert next(rounds).round == 2
    rounds.close()
    assert "continues after round 1 in a different environment (torch 0.1, now " in caplog.text
    assert "hardware another, now " in caplog.text
    caplog.clear()
    assert [done.round for done in session(tmp_path).rounds()] == [3]
    assert folder.read().info.environment == now
    assert caplog.text == ""


def test_tracebacks_stay_with_a_resumed_run_and_not_with_one_that_starts_anew(tmp_path):
    folder = interrupted(tmp_path / "resumed")
    folder.keep_error("Traceback of what stopped it")
    list(session(tmp_path / "resumed").rounds())
    assert folder.error.read_text() == "Traceback of what stopped it\n"
    folder = RunFolder(tmp_path / "new")
    folder.keep_error("Traceback of what came before the first round")
    list(session(tmp_path / "new").rounds())
    assert not folder.error.exists()


# --- what is missing or does not belong together ------------------------------------------------


def go_on(out: Path) -> int:
    return main(["--resume", str(out), "--executor", "serial", "--no-track"])


def lose_all(folder: RunFolder) -> None:
    shutil.rmtree(folder.states)


def lose_the_pointer(folder: RunFolder) -> None:
    (folder.states / "head.json").unlink()


@pytest.mark.parametrize("lose", [lose_all, lose_the_pointer])
def test_a_lost_checkpoint_is_a_question_whose_answer_is_a_new_beginning(tmp_path, capsys, lose):
    folder = interrupted(tmp_path)
    lose(folder)
    before = folder.head.read_bytes()
    assert go_on(tmp_path) == 2
    printed = capsys.readouterr().err
    assert "has rounds up to 1 but no checkpoint" in printed
    assert "to restart at round 0, remove rounds.jsonl" in printed
    assert printed.count("\n") == 1
    assert folder.head.read_bytes() == before
    folder.rounds_file.unlink()
    assert go_on(tmp_path) == 0
    assert folder.read().done == 3
    folder.head.unlink()
    assert go_on(tmp_path) == 2
    assert "there is no run.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "begun"),
    [
        ((), ""),  # killed between its first files
        ((), '{"round": 0'),
        ((), 1),  # killed before its first checkpoint
        (("checkpoint_every=0", "keep.models=none"), 2),
    ],
)
def test_a_run_without_a_checkpoint_begins_anew_and_says_so(tmp_path, capsys, keys, begun):
    folder = interrupted(tmp_path, *keys)
    if folder.states.exists():
        lose_all(folder)
    lines = folder.rounds_file.read_text().splitlines(keepends=True)
    folder.rounds_file.write_text(begun if isinstance(begun, str) else "".join(lines[:begun]))
    assert go_on(tmp_path) == 0
    assert f"there is no checkpoint in {tmp_path}: the run begins at round 0" in (
        capsys.readouterr().out
    )
    assert [done.round for done in folder.read().rounds] == [0, 1, 2, 3]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_damaged_analyses_are_refused_before_anything_is_changed(tmp_path, capsys):
    folder = interrupted(tmp_path)
    folder.matrices_file.write_text("{")
    before = contents(tmp_path)
    assert go_on(tmp_path) == 2
    assert re.fullmatch(r"error: .*matrices.json cannot be read.*\n", capsys.readouterr().err)
    assert contents(tmp_path) == before


def less(folder: RunFolder) -> None:
    """Edit a round."""
    run = folder.read()
    edited = replace(run.rounds[1], metrics={**run.rounds[1].metrics, "local_accuracy": 0.99})
    write_whole(folder.path, replace(run, rounds=[run.rounds[0], edited]))


def without_one(folder: RunFolder) -> None:
    """Leave the lines up to the round before the checkpoint's."""
    write_whole(folder.path, folder.read().until(0))


def of_a_twin(folder: RunFolder) -> None:
    """The rounds of another run of the same experiment."""
    twin = interrupted(folder.path / "twin")
    for name in ("run.json", "rounds.jsonl"):
        shutil.copy(twin.path / name, folder.path / name)


@pytest.mark.parametrize("change", [less, without_one, of_a_twin])
def test_rounds_that_the_checkpoint_does_not_know_are_refused(tmp_path, change):
    folder = interrupted(tmp_path)
    change(folder)
    with pytest.raises(UserError, match=r"rounds\.jsonl do not match its checkpoint of round 1"):
        list(session(tmp_path).rounds())


@pytest.mark.parametrize("every", [0, 1])
def test_a_result_of_another_experiment_or_partition_is_refused(tmp_path, every):
    folder = interrupted(tmp_path, f"checkpoint_every={every}")
    whole, partition = folder.read_head(), folder.partition()
    folder.write_head(whole, {**partition, "sha256": "f" * 64})
    with pytest.raises(UserError, match=r"another experiment \(partition_sha256 was"):
        session(tmp_path, f"checkpoint_every={every}")
    folder.write_head(replace(whole, identity="f" * 64), partition)
    with pytest.raises(UserError, match=r"another experiment \(identity was"):
        session(tmp_path, f"checkpoint_every={every}")


# --- the folder is claimed before anything is computed ------------------------------------------


def test_nothing_is_computed_for_a_folder_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    def computes(*_):
        raise AssertionError("computed")

    monkeypatch.setattr("fedray.runtime.session.Assembly", computes)
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/fedray/out")):
        with pytest.raises(UserError, match="cannot be written"):
            session(out)
        words = ["local_digits", *QUICK, "--executor", "serial", "--no-track", "--out", str(out)]
        assert main(words) == 2
        printed = capsys.readouterr().err
        assert "cannot be written" in printed
        assert printed.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_fills_stops_the_run_which_goes_on_later(tmp_path, monkeypatch, capsys):
    rounds = list(session(tmp_path / "whole").rounds())
    fsync, out = os.fsync, tmp_path / "out"

    def full(descriptor):
        if RunFolder(out).rounds_file.exists() and len(RunFolder(out).rounds()) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    words = ["local_digits", *QUICK, "--executor", "serial", "--no-track", "--out", str(out)]
    monkeypatch.setattr(os, "fsync", full)
    assert main(words) == 1
    printed = capsys.readouterr().err
    assert re.search(rf"No space left on device.*--resume {out}", printed)
    assert printed.count("\n") == 1
    monkeypatch.undo()
    assert [path for path in out.rglob("*") if ".tmp" in path.name] == []
    assert go_on(out) == 0
    found = RunFolder(out).rounds()
    assert [done.metrics for done in found] == [done.metrics for done in rounds]


# --- order, and what a long run holds -----------------------------------------------------------


def test_open_files_stay_as_many_over_a_long_run(tmp_path):
    run, open_files = session(tmp_path, "rounds=60", "data.samples=120", "eval_every=20"), []
    for _ in run.rounds():
        run._states.wait()
        open_files.append(psutil.Process().num_fds())
    assert max(open_files[2:]) == open_files[2]


def test_states_that_nothing_names_are_removed_in_a_run_without_checkpoints(tmp_path):
    run, place = session(tmp_path, "rounds=5", "checkpoint_every=0", "keep.models=none"), tmp_path
    assert max(len([*(place / "states").glob("*")]) for _ in run.rounds()) == 2


def test_there_is_a_checkpoint_before_there_is_a_second_round(tmp_path, monkeypatch):
    write = states.write_states
    monkeypatch.setattr(states, "write_states", lambda *args: time.sleep(0.2) or write(*args))
    rounds, place = session(tmp_path).rounds(), tmp_path / "states"
    next(rounds)
    assert latest_round(place) == 0
    next(rounds)
    assert latest_round(place) == 0
    rounds.close()
    assert latest_round(place) == 1


# --- texts and weights in files of one's own -----------------------------------------------------

TEXTS = {
    name: {"Short Label": name, "Fine-grained Descriptions": [f"the digit {name}"]}
    for name in (*map(str, range(10)), "first")
}

WORDS = ["a", "photo", "of", "the", "digit"]


def of_texts(root: Path, out: Path) -> Session:
    """FedTSP with texts, names and word vectors out of files of the user's."""
    experiment = resolve("fedtsp_digits", [
        "rounds=2", "local_epochs=1", "data.clients=2", "data.samples=200",
        "data.partition=iid", "algorithm.prompt_length=0", "model.feature_dim=3",
        "text.encoder.name=vectors", f"text.encoder.path={root / 'vectors.txt'}",
        f"text.descriptions={root / 'texts.json'}", f"text.names={root / 'names.json'}",
    ])  # fmt: skip
    return serial(experiment, out)


def texts_in(root: Path, **changed: str) -> None:
    """Write the files, those that are given with another content."""
    files = {
        "texts": json.dumps(TEXTS),
        "names": json.dumps([*map(str, range(10))]),
        "vectors": "".join(f"{word} {i} 1 {i % 3}\n" for i, word in enumerate([*WORDS, *TEXTS])),
    }
    root.mkdir(exist_ok=True)
    for name, content in {**files, **changed}.items():
        suffix = "txt" if name == "vectors" else "json"
        (root / f"{name}.{suffix}").write_text(content)


def first_other(texts: dict[str, Any]) -> str:
    other = {"Short Label": "0", "Fine-grained Descriptions": ["the first digit"]}
    return json.dumps({**texts, "0": other})


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"texts": first_other(TEXTS)}, "text.descriptions"),
        ({"names": json.dumps(["first", *map(str, range(1, 10))])}, "text.names"),
        ({"vectors": "".join(f"{word} 1 2 3\n" for word in [*WORDS, *TEXTS])},
         "text.encoder.path"),
    ],
)  # fmt: skip
def test_other_texts_or_weights_than_the_run_began_with_are_refused(tmp_path, changed, what):
    root, out = tmp_path / "files", tmp_path / "out"
    texts_in(root)
    rounds = of_texts(root, out).rounds()
    assert [next(rounds).round, next(rounds).round] == [0, 1]
    rounds.close()
    hashes = RunFolder(out).read().info.files_sha256
    assert set(hashes) == {"text.descriptions", "text.names", "text.encoder.path"}
    texts_in(root, **changed)
    with pytest.raises(UserError, match=rf"another experiment \(files_sha256.{what} was "):
        of_texts(root, out)
    with pytest.raises(UserError, match=rf"another experiment \(files_sha256.{what} was "):
        reopen(out)
    texts_in(root)
    reopen(out)
    assert [done.round for done in of_texts(root, out).rounds()] == [2]


def test_runs_are_reused_only_with_the_files_that_they_read(tmp_path):
    root, out = tmp_path / "files", tmp_path / "out"
    texts_in(root)
    of_run = of_texts(root, out)
    list(of_run.rounds())
    run = (RunFolder(out), of_run.experiment)
    check_current([run], "start anew")
    texts_in(root, texts=first_other(TEXTS))
    with pytest.raises(UserError, match=rf"have changed since 1 finished runs: .*{out}; .*anew"):
        check_current([run], "start anew")


def test_rounds_are_on_the_disk_before_their_checkpoint_and_the_best_models_stay(
    tmp_path, monkeypatch
):
    """The learning rate rises until it destroys the models: of three rounds the first is best."""
    done: list[str] = []
    flush, write = RunWriter.flush, Commit.write
    monkeypatch.setattr(RunWriter, "flush", lambda *of: done.append("rounds") or flush(*of))
    monkeypatch.setattr(Commit, "write", lambda *of: done.append("pointer") or write(*of))
    rising = "lr_schedule={name: steps, warmup_rounds: 2, warmup_lr: 0.05, milestones: [9]}"
    list(session(tmp_path, rising, "lr=8", "keep.models=best").rounds())
    assert [*dict.fromkeys(done)] == ["rounds", "pointer"]
    assert done.count("rounds") >= 4
    best = Commit.read(tmp_path / "states", "best")
    assert RunFolder(tmp_path).read().best.round == best.facts["round"] == 1


def test_an_identity_covers_images_versions_and_the_content_of_plug_ins(tmp_path, monkeypatch):
    experiment = resolve("local_digits", QUICK)
    identity = experiment.identity()
    assert experiment.identity("some images") != experiment.identity("others")
    with monkeypatch.context() as changed:
        changed.setattr(algorithms.get("local"), "version", 2)
        assert resolve("local_digits", QUICK).identity() != identity
    identities = set[str]()
    for value in (1, 2):
        (tmp_path / "mine.py").write_text(f"VALUE = {value}\n")
        identities.add(resolve("local_digits", QUICK, [str(tmp_path / "mine.py")]).identity())
    assert len({*identities, identity}) == 3
