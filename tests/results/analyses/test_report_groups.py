"""Similarity of prompt groups and how often they are drawn: numbers by hand, and the command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from commands import analyse as main
from rounds import rounds_in

from fedray.results.analyses.extra_step import reopen
from fedray.results.analyses.groups import OTHER, SAME, WITHIN, GroupCosines, group_cosines
from fedray.results.frame import load_runs
from fedray.run import main as fedray_run

RUN = ["fedmgp_clip", "--executor", "serial", "--no-track", "data.image_size=8", "rounds=2"]
RUN += ["data.clients=3", "data.samples=200", "local_epochs=1", "participation=0.7"]


@pytest.fixture
def done(tiny_clip):
    """`done(folder, keys...)` makes a run there."""

    def done(folder: Path, *keys: str) -> Path:
        clip = f"model.clip={{name: openclip, path: {tiny_clip}}}"
        assert fedray_run([*RUN, clip, *keys, "--out", str(folder)]) == 0
        return folder

    return done


def test_cosines_by_hand():
    x, y, between = [2.0, 0.0], [0.0, 3.0], [1.0, 1.0]
    half = 0.5**0.5
    # two clients, two groups, two classes
    vectors = torch.tensor([[[x, x], [x, y]], [[y, y], [between, x]]])
    found = GroupCosines.of([3, 7], vectors)
    first, other = found.cosines[0, :, 0], found.cosines[0, :, 1]
    assert first.flatten().tolist() == pytest.approx([1, 0.5, 0.5, 1])
    assert other.flatten().tolist() == pytest.approx([0, (half + 1) / 2, 0.5, half / 2])
    second = half / 2  # client 7: y with between, and y with x
    assert found.within.flatten().tolist() == pytest.approx([1, *[(0.5 + second) / 2] * 2, 1])
    assert found.names == ["3.0", "3.1", "7.0", "7.1"]
    assert found.between[0].tolist() == pytest.approx([1, 0.5, 0, (half + 1) / 2])
    assert torch.equal(found.between, found.between.T)
    means = found.means()
    assert means[WITHIN] == pytest.approx((0.5 + second) / 2)
    assert means[SAME] == pytest.approx((0 + half / 2) / 2)
    assert means[OTHER] == pytest.approx(((half + 1) / 2 + 0.5) / 2)


def test_what_there_is_no_pair_of_is_left_out():
    assert GroupCosines.of([0], torch.ones(1, 1, 4, 5)).means() == {}
    assert set(GroupCosines.of([0], torch.rand(1, 2, 4, 5)).means()) == {WITHIN}
    assert set(GroupCosines.of([0, 1], torch.rand(2, 1, 4, 5)).means()) == {SAME}


def test_clients_that_share_every_group_are_alike_and_others_are_not(done, tmp_path):
    done(tmp_path / "all", "algorithm.aggregation=all", "participation=1")
    done(tmp_path / "two", "algorithm.selected=1", "participation=1")
    alike, distinct = (
        group_cosines(run) for run in load_runs([tmp_path / "all", tmp_path / "two"])
    )
    assert set(alike) == {"text features", "text prompts", "image features", "visual prompts"}
    for what in alike:
        assert alike[what].means()[SAME] == pytest.approx(1)
        assert alike[what].means()[WITHIN] < 0.9999
        assert distinct[what].means()[SAME] < 0.9999


@pytest.mark.slow
def test_the_command_writes_tables_and_plots_of_the_results(done, tmp_path, capsys):
    for seed in (0, 1):
        done(tmp_path / str(seed), f"seed={seed}")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/**/*")}
    out = tmp_path / "out"
    assert main(["groups", str(tmp_path), "--out", str(out)]) == 0
    lines = (out / "groups.md").read_text().splitlines()
    assert lines[0] == f"| cosine of groups | {WITHIN} | {SAME} | {OTHER} |"
    assert [line.split(" | ")[0] for line in lines[2:6]] == [
        f"| fedmgp, {what}"
        for what in ("text features", "text prompts", "image features", "visual prompts")
    ]
    rounds = [rounds_in(tmp_path / s) for s in "01"]
    for modality in ("text", "visual"):
        row = next(i for i, line in enumerate(lines) if line.startswith(f"fedmgp, {modality}:"))
        assert lines[row + 2] == "| round | group 0 | group 1 | group 2 |"
        for number in (1, 2):
            for group, text in enumerate(lines[row + 3 + number].split("|")[2:-1]):
                drawn = [
                    run[number]["metrics"][f"client/drawn_{modality}_{group}"] for run in rounds
                ]
                assert float(text.split()[0]) == pytest.approx(50 * sum(drawn), abs=0.01)
    pictures = {path.name: path.read_bytes()[:4] for path in out.glob("*.png")}
    assert len(pictures) == 2 * 4 + 2
    assert set(pictures.values()) == {b"\x89PNG"}
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())


def test_one_modality_has_no_plots_of_the_other(done, tmp_path):
    done(tmp_path, "algorithm.visual_length=0")
    assert main(["groups", str(tmp_path)]) == 0
    names = {path.name for path in (tmp_path / "report").glob("*.png")}
    assert names == {
        "groups_01_text_features_within.png",
        "groups_01_text_features_between.png",
        "groups_01_text_prompts_within.png",
        "groups_01_text_prompts_between.png",
        "groups_01_drawn_text.png",
    }


def test_one_clients_matrix_as_numbers(done, tmp_path):
    """Of the raw text prompts: cosines of the client's prompts, each group as one vector."""
    done(tmp_path, "participation=1", "algorithm.visual_length=0")
    assert main(["groups", str(tmp_path), "--client", "2"]) == 0
    lines = (tmp_path / "report" / "groups.md").read_text().splitlines()
    at = lines.index("fedmgp, seed 0, client 2, text prompts:")
    _, found = reopen(tmp_path)
    vectors = F.normalize(found.clients[2].model["text"].flatten(1), dim=1)
    expected = [[f"{value:.3f}" for value in row] for row in (vectors @ vectors.T).tolist()]
    assert [line.split(" | ")[1:] for line in lines[at + 4 : at + 7]] == [
        [*row[:-1], f"{row[-1]} |"] for row in expected
    ]
    assert not list((tmp_path / "report").glob("*between.png"))
    assert main(["groups", str(tmp_path), "--client", "7", "--out", str(tmp_path / "x")]) == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["algorithm={name: promptfl, length: 4}"], "promptfl has no groups of prompts"),
        (["faults.drop=0.99"], "no client has trained yet"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(done, keys, message, tmp_path, refused):
    folder = done(tmp_path / "run", "rounds=1", *keys)
    assert message in refused("groups", folder)
    assert not (folder / "report").exists()
