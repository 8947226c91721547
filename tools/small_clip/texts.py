"""The text tower's training data: texts, and a teacher's vector for each of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedray.errors import UserError
from fedray.language.descriptions import canonical_word, find_descriptions, read_descriptions
from fedray.language.encoders import TextEncoder, Tokens
from fedray.storage.files import write_json
from fedray.streams import Streams
from tools.small_clip.spec import FOLDER, Spec
from tools.small_clip.tokenizer import prune, teacher_vocabulary, whole_words, write_tokenizer

USUAL_FRAME = "a photo of a {}."
"""The frame in which the teacher reads a noun; it selects the pictured meaning of a word."""
FRAMES: tuple[str, ...] = (
    "{}",
    "{}.",
    "a {}",
    "the {}",
    USUAL_FRAME,
    USUAL_FRAME,
    "a photo of the {}.",
    "a photo of {}.",
    "a picture of a {}.",
    "an image of a {}.",
    "a photo of one {}.",
    "a photo of a {}",
    "a blurry photo of a {}.",
    "a close-up photo of a {}.",
    "a photo of a small {}.",
    "a photo of a large {}.",
    "this is a {}.",
    "there is a {} in this picture.",
)
"""Frames around a noun that do not change its meaning; the usual one is drawn twice as often."""
LEVELS = 3
"""A class has a name, a kind and a wider kind: golden retriever, dog, animal."""
_TEXTS, _TENSORS = "texts.json", "targets.pt"


@dataclass(frozen=True)
class DistillationData:
    """Texts and the teacher's targets.

    Attributes:
        nouns: texts that may be put into a frame.
        sentences: texts that are used as they are.
        pieces: the vocabulary.
        targets: [nouns + sentences, embed_dim], of length one.
        embeddings: [pieces, width], initial token embeddings.
    """

    nouns: list[str]
    sentences: list[str]
    pieces: list[str]
    targets: Tensor
    embeddings: Tensor


@cache
def captions() -> Mapping[str, tuple[str, ...]]:
    """Read captions.json: the `LEVELS` nouns of each class, by canonical name."""
    found = json.loads((FOLDER / "captions.json").read_text(encoding="utf-8"))
    return {canonical_word(name): tuple(nouns) for name, nouns in found.items()}


def levels_of(class_names: Sequence[str]) -> tuple[list[list[str]], list[list[int]]]:
    """Return the distinct nouns of each level, and the position of each class among them.

    Args:
        class_names: C classes; a class without captions is its own kind.

    Returns:
        `LEVELS` sorted lists of nouns, and `LEVELS` lists of C positions.
    """
    plain = [canonical_word(name) for name in class_names]
    rows = [captions().get(name, (name,) * LEVELS) for name in plain]
    nouns = [sorted({row[level] for row in rows}) for level in range(LEVELS)]
    positions = [[nouns[level].index(row[level]) for row in rows] for level in range(LEVELS)]
    return nouns, positions


def prepare(spec: Spec, class_names: Sequence[str], folder: Path) -> None:
    """Ask the teacher once; write tokenizer and data to `folder`, where workers read them.

    Raises:
        UserError: if the teacher or a file of descriptions is missing, or a width of the model
            exceeds the teacher's.
    """
    if (folder / _TEXTS).is_file():
        return
    choice = spec.text.teacher_choice
    vocabulary = teacher_vocabulary(choice.folder())
    captioned = sorted({noun for level in levels_of(class_names)[0] for noun in level})
    nouns = _nouns(spec, captioned, vocabulary)
    sentences = _sentences(spec.text.descriptions)
    pieces = prune(vocabulary, spec.text.pieces, captioned)
    teacher = choice.build()
    _check_width("embed_dim", spec.embed_dim, min(teacher.dim, len(nouns) + len(sentences)))
    _check_width("text.width", spec.text.width, min(teacher.token_width, len(pieces)))
    groups = [teacher.features([USUAL_FRAME.format(noun) for noun in nouns])]
    if sentences:
        groups.append(teacher.features(sentences))
    targets = _principal(groups, spec.embed_dim)
    embedded = _piece_embeddings(teacher, [vocabulary.get(piece, 0) for piece in pieces])
    embeddings = _principal([embedded], spec.text.width) * 0.02 * spec.text.width**0.5
    write_tokenizer(pieces, spec.text.context_length, folder)
    torch.save({"targets": targets, "embeddings": embeddings}, folder / _TENSORS)
    write_json(folder / _TEXTS, {"nouns": nouns, "sentences": sentences, "pieces": pieces})


def read(folder: Path) -> DistillationData:
    """Read the files of `prepare`."""
    texts = json.loads((folder / _TEXTS).read_text(encoding="utf-8"))
    return DistillationData(**texts, **torch.load(folder / _TENSORS, weights_only=True))


def _nouns(spec: Spec, captioned: Iterable[str], vocabulary: Mapping[str, int]) -> list[str]:
    """Return captions, whole words of the teacher, and random pairs of words; each once."""
    words = whole_words(vocabulary, spec.text.words)
    generator = Streams(spec.seed).numpy("pretrain_pairs")
    drawn = generator.integers(len(words), size=(spec.text.pairs, 2))
    return list(dict.fromkeys([*captioned, *words, *(f"{words[a]} {words[b]}" for a, b in drawn)]))


def _sentences(files: Iterable[str]) -> list[str]:
    """Return short and fine-grained descriptions of all classes of some files."""
    found: list[str] = []
    for name in files:
        for label, texts in read_descriptions(find_descriptions(name)).items():
            found += [canonical_word(label), *filter(None, [texts.short]), *texts.fine]
    return list(dict.fromkeys(found))


def _check_width(key: str, width: int, widest: int) -> None:
    if width > widest:
        raise UserError(
            f"{key}={width}, but the teacher's vectors of these texts span at most {widest} "
            f"dimensions; set {key} to at most {widest}"
        )


@torch.no_grad()
def _piece_embeddings(teacher: TextEncoder, ids: Sequence[int]) -> Tensor:
    """Return the teacher's word embeddings [pieces, d'] of some ids."""
    kept = torch.tensor(ids)[None]
    tokens = Tokens(kept, torch.ones_like(kept, dtype=torch.bool), torch.zeros(1, dtype=torch.long))
    return teacher.embed(tokens)[0]


def _principal(groups: list[Tensor], dim: int) -> Tensor:
    """Return unit vectors [n, dim] in the first principal directions of the first group.

    Each group is centred by its own mean, which removes what all framed nouns, or all sentences,
    have in common.
    """
    units = [F.normalize(vectors.float(), dim=1) for vectors in groups]
    centred = [vectors - vectors.mean(0) for vectors in units]
    _, directions = torch.linalg.eigh(centred[0].T @ centred[0])
    return F.normalize(torch.cat(centred) @ directions[:, -dim:].flip(1), dim=1).contiguous()
