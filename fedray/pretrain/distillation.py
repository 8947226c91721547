"""Distillation data of the text tower: texts, and a teacher's vector for each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedray.errors import UserError
from fedray.files import write_json
from fedray.language.descriptions import canonical_name, check_entry, find_descriptions
from fedray.language.encoders import TextEncoder, Tokens
from fedray.pretrain.captions import USUAL_FRAME, levels_of
from fedray.pretrain.spec import PretrainConfig
from fedray.pretrain.vocabulary import prune, teacher_vocabulary, whole_words, write_tokenizer
from fedray.streams import Streams

_CHUNK = 256
_TEXTS, _TENSORS = "texts.json", "targets.pt"


@dataclass(frozen=True)
class DistillationData:
    """Texts and targets.

    Attributes:
        nouns: texts that may be put into a frame.
        sentences: texts that are used as they are.
        targets: [nouns + sentences, embed_dim], of length one.
        pieces: the vocabulary.
        embeddings: [pieces, width], where the token embeddings start.
    """

    nouns: list[str]
    sentences: list[str]
    targets: Tensor
    pieces: list[str]
    embeddings: Tensor


def prepare(config: PretrainConfig, class_names: tuple[str, ...], folder: Path) -> None:
    """Ask the teacher once; write tokenizer and data to `folder`, where workers read them.

    Raises:
        UserError: when the teacher or a file of descriptions is not there, or the joint space is
            wider than the teacher's.
    """
    if (folder / _TEXTS).is_file():
        return
    spec, choice = config.text, config.text.teacher_choice
    vocabulary = teacher_vocabulary(choice.folder())
    levels, _ = levels_of(class_names, known=config.captions)
    captions = sorted({noun for level in levels for noun in level})
    nouns = _nouns(config, captions, vocabulary)
    sentences = _sentences(spec.descriptions)
    pieces = prune(vocabulary, spec.pieces, captions)
    teacher = choice.build()
    _check_widths(config, teacher, len(nouns) + len(sentences), len(pieces))
    framed = _features(teacher, [USUAL_FRAME.format(noun) for noun in nouns])
    targets = _principal([framed, _features(teacher, sentences)], config.embed_dim)
    embedded = _piece_embeddings(teacher, pieces, vocabulary)
    embeddings = _principal([embedded], spec.width) * 0.02 * spec.width**0.5
    write_tokenizer(pieces, spec.context_length, folder)
    torch.save({"targets": targets, "embeddings": embeddings}, folder / _TENSORS)
    write_json(folder / _TEXTS, {"nouns": nouns, "sentences": sentences, "pieces": pieces})


def _nouns(config: PretrainConfig, captions: list[str], vocabulary: Mapping[str, int]) -> list[str]:
    """The captions' nouns, whole words of the teacher, random pairs of these; each once."""
    spec = config.text
    words = whole_words(vocabulary, spec.words)
    drawn = Streams(config.seed).numpy("pretrain_pairs").integers(len(words), size=(spec.pairs, 2))
    pairs = [f"{words[a]} {words[b]}" for a, b in drawn]
    return list(dict.fromkeys([*captions, *words, *pairs]))


@torch.no_grad()
def _piece_embeddings(
    teacher: TextEncoder, pieces: list[str], vocabulary: Mapping[str, int]
) -> Tensor:
    """The teacher's word embeddings of the pieces that are kept [pieces, d']."""
    kept = torch.tensor([vocabulary.get(piece, 0) for piece in pieces])
    mask = torch.ones(1, len(kept), dtype=torch.bool)
    return teacher.embed(Tokens(kept[None], mask, torch.zeros(1, dtype=torch.long)))[0]


def read(folder: Path) -> DistillationData:
    """What `prepare` wrote."""
    texts = json.loads((folder / _TEXTS).read_text(encoding="utf-8"))
    tensors = torch.load(folder / _TENSORS, weights_only=True)
    return DistillationData(**texts, **tensors)


def _sentences(files: tuple[str, ...]) -> list[str]:
    """Short and fine-grained descriptions of all classes of some files."""
    found: list[str] = []
    for name in files:
        path = find_descriptions(name)
        for label, entry in json.loads(path.read_text(encoding="utf-8")).items():
            texts = check_entry(label, entry, f"text.descriptions: {path}")
            short = [texts.short] if texts.short else []
            found += [canonical_name(label), *short, *texts.fine]
    return list(dict.fromkeys(found))


def _check_widths(config: PretrainConfig, teacher: TextEncoder, texts: int, pieces: int) -> None:
    widest = min(teacher.dim, texts)
    if config.embed_dim > widest:
        raise UserError(
            f"embed_dim={config.embed_dim}, but {texts} texts of a teacher of width {teacher.dim} "
            f"span at most {widest} dimensions; set embed_dim to at most that"
        )
    widest = min(teacher.token_width, pieces)
    if config.text.width > widest:
        raise UserError(
            f"text.width={config.text.width}, but the teacher's {pieces} word embeddings span at "
            f"most {widest} dimensions; set text.width to at most that"
        )


@torch.no_grad()
def _features(teacher: TextEncoder, texts: list[str]) -> Tensor:
    """The teacher's outputs, computed in the order of length, so that little is padded."""
    order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), row))
    found = torch.empty(len(texts), teacher.dim)
    for start in range(0, len(order), _CHUNK):
        rows = order[start : start + _CHUNK]
        found[rows] = teacher.features([texts[row] for row in rows]).float()
    return found


def _principal(groups: list[Tensor], dim: int) -> Tensor:
    """Vectors [n, d] of length one, in the first `dim` principal directions of the first group.

    Each group is centred by its own mean, so that neither what all framed nouns share nor what
    all sentences share is left.
    """
    groups = [F.normalize(vectors.float(), dim=1) for vectors in groups]
    groups = [vectors - vectors.mean(0) if len(vectors) else vectors for vectors in groups]
    _, directions = torch.linalg.eigh(groups[0].T @ groups[0])
    return F.normalize(torch.cat(groups) @ directions[:, -dim:].flip(1), dim=1).contiguous()
