"""Files that an experiment names count by their content, wherever they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.config import content_of, files_of, load_experiment
from fedray.language.text_cache import cached_text_embeddings
from fedray.runtime.assembly import load_data
from fedray.runtime.resolve import resolve

PLUGIN = '''
from pathlib import Path

import numpy as np

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import Frozen, InputFile
from fedray.core import method
from fedray.data.listing import Listing, Row
from fedray.data.partitions import Partition, partitions
from fedray.data.sources import Source, sources


class Part(Frozen):
    """A part with a file."""

    file: InputFile | None = None
    """Its file."""


@method("tabled", "Tabled", "-")
class Tabled(FedAvg):
    """FedAvg with a table."""

    table: InputFile | None = None
    """A table."""
    several: tuple[InputFile, ...] = ()
    """Some more."""
    named: dict[str, InputFile] = {}
    """Some by name."""
    part: Part | None = None
    """Parameters of a part."""
    parts: tuple[Part, ...] = ()
    """Parameters of several parts."""


@partitions.add
class FromFile(Partition):
    """The owners of a file."""

    name = "from_file"
    table: InputFile = "one.txt"
    """Owners."""

    def split(self, annotations, clients, rng):
        step = int(Path(self.table).read_text())
        owners = np.arange(len(annotations.labels)) // step % clients
        return [np.flatnonzero(owners == client) for client in range(clients)]


@sources.add
class Toned(Source):
    """Images as bright as a file says."""

    name = "toned"
    table: InputFile = "one.txt"
    """Tone."""

    def find_root(self, root, *, download):
        return Path(__file__).parent

    def files(self, root, options):
        return []

    def listing(self, root, options):
        tone = int(Path(self.table).read_text())
        rows = [Row(np.full((8, 8), tone + i % 2, np.uint8), i % 2) for i in range(40)]
        return Listing(("a", "b"), rows)
'''

ENCODER = '''
import torch
from fedray.plugin import EncoderChoice, TextEncoder, encoders


class Lengths(TextEncoder):
    """Lengths of texts."""

    dim, identity = 2, "lengths:1"

    def features(self, texts):
        return torch.tensor([[{factor} * float(len(text))] * 2 for text in texts])


@encoders.add
class LengthsChoice(EncoderChoice):
    """Lengths of texts."""

    name = "lengths"

    def identity(self):
        return Lengths.identity

    def build(self):
        return Lengths()
'''


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRAY_DATA", raising=False)
    (tmp_path / "mine.py").write_text(PLUGIN)
    (tmp_path / "one.txt").write_text("1")
    return tmp_path


def tabled(*words: str):
    return resolve("fedavg_digits", ["algorithm=tabled", *words], ["mine.py"])


def test_a_file_that_a_plugins_parameter_names(here):
    word = "algorithm.table=one.txt"
    before = tabled(word)
    assert files_of(before) == {"algorithm.table": str(here / "one.txt")}
    assert before.algorithm.params.table == str(here / "one.txt")
    first = before.identity()
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "same.txt").write_text("1")
    assert tabled("algorithm.table=elsewhere/same.txt").identity() == first
    (here / "one.txt").write_text("2")
    assert tabled(word).identity() != first
    assert tabled().identity() not in (first, tabled(word).identity())


@pytest.mark.parametrize(
    ("assignments", "key"),
    [
        (["algorithm.several=[one.txt]"], "algorithm.several.0"),
        (["algorithm.named={a: one.txt}"], "algorithm.named.a"),
        (["algorithm.named={'1': one.txt}"], "algorithm.named.1"),
        (["algorithm.part={file: one.txt}"], "algorithm.part.file"),
        (["algorithm.parts=[{}, {file: one.txt}]"], "algorithm.parts.1.file"),
        (["data.partition={name: from_file, table: one.txt}"], "data.partition.table"),
        (
            [
                "data.evolution=repartition",
                "data.evolution.phases=[{round: 2, partition: {name: from_file, table: one.txt}}]",
            ],
            "data.evolution.phases.0.partition.table",
        ),
    ],
)
def test_a_file_counts_by_its_content_wherever_an_experiment_names_it(here, assignments, key):
    before = tabled(*assignments)
    assert files_of(before) == {key: str(here / "one.txt")}
    first = before.identity()
    (here / "one.txt").write_text("2")
    assert tabled(*assignments).identity() != first
    assert load_experiment(before.tree()).identity() == tabled(*assignments).identity()


@pytest.mark.parametrize(
    "word",
    [
        "data.partition={name: from_file, table: one.txt}",
        "data.evolution={name: repartition, phases: [{round: 2, partition: {name: from_file, "
        "table: one.txt}}]}",
        "data.source={name: toned, table: one.txt}",
    ],
)
def test_data_that_depend_on_a_changed_file_are_made_again_in_the_same_process(here, word):
    def first_images():
        data = load_data(tabled(word, "data.clients=2"))
        last = data.phases[-1][1]
        return last.train[0].tolist(), data.images.images.max()

    before = first_images()
    (here / "one.txt").write_text("2")
    assert first_images() != before


def test_an_edited_encoder_of_a_plugin_embeds_its_texts_again(here):
    def embedded(factor):
        (here / "lengths.py").write_text(ENCODER.format(factor=factor))
        words = ["text.encoder=lengths", "model.feature_dim=2"]
        experiment = resolve("fedglcl_digits", words, ["lengths.py"])
        return cached_text_embeddings(experiment.text.encoder.build(), ["a cat", "dog"]).tolist()

    assert embedded(1) == [[5, 5], [3, 3]]
    assert embedded(2) == [[10, 10], [6, 6]]


def test_the_plugins_of_an_experiment_are_in_use_when_its_files_are_looked_for(here):
    experiment = tabled("algorithm.table=one.txt")
    first = experiment.identity()
    resolve("fedavg_digits")  # which uses none
    assert experiment.identity() == first


def test_a_relative_path_is_looked_up_among_the_data_first(here, monkeypatch):
    (here / "data").mkdir()
    (here / "data" / "one.txt").write_text("3")
    monkeypatch.setenv("FEDRAY_DATA", str(here / "data"))
    assert files_of(tabled("algorithm.table=one.txt")) == {
        "algorithm.table": str(here / "data" / "one.txt")
    }
    (here / "data" / "one.txt").unlink()
    assert files_of(tabled("algorithm.table=one.txt")) == {"algorithm.table": str(here / "one.txt")}


def test_the_content_of_a_folder_is_that_of_its_files_with_their_names(here):
    folder = here / "weights"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "sub" / "b").write_text("2")
    first = content_of(str(folder))
    (folder / ".cache").write_text("anything")
    assert content_of(str(folder)) == first
    folder.rename(here / "moved")
    assert content_of(str(here / "moved")) == first
    (here / "moved" / "a").rename(here / "moved" / "c")
    assert content_of(str(here / "moved")) not in (first, "")
    assert content_of(str(folder)) == ""
