"""Word vectors from a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedray.base.errors import UserError
from fedray.config import InputFile
from fedray.language.encoders.base import EncoderChoice, TextEncoder, encoders
from fedray.language.encoders.weights import digest, reading

_BETWEEN_WORDS = re.compile(r"[\s_/]+")
_AROUND_WORDS = "\"'.,:;!?()[]"


@encoders.add
class VectorsChoice(EncoderChoice):
    """The mean of the word vectors of a text, read from a file."""

    name = "vectors"
    paper = "Pennington et al., GloVe, EMNLP 2014; Mikolov et al., word2vec, NeurIPS 2013"

    path: InputFile
    """File in GloVe's or word2vec's text format."""

    def identity(self) -> str:
        with reading(f"text.encoder.path={self.path}"):
            return f"{self.name}:{digest([Path(self.path)])}"

    def width(self) -> int:
        return _width(Path(self.path))

    def build(self) -> VectorsEncoder:
        return VectorsEncoder(Path(self.path), self.identity())


class VectorsEncoder(TextEncoder):
    """An encoder that returns the mean of the word vectors of a text.

    Words are separated by blanks, `_` and `/`; punctuation around them is removed. A word is looked
    up as written, then in lower case. The encoder is meant for class names (`text.style: name`),
    because the words of a template count like any others.

    Args:
        path: the file, with a word and its numbers per line, separated by single blanks. The first
            line of word2vec's format, with the number of words and columns, is skipped.
        identity: see `TextEncoder`.

    Raises:
        UserError: if the file has another format.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity, self.dim = path, identity, _width(path)

    def features(self, texts: Sequence[str]) -> Tensor:
        """Return means [T, d] of the words' vectors, not normalised."""
        words_of_texts = [_words(text) for text in texts]
        vocabulary = dict.fromkeys(word for words in words_of_texts for word in words)
        vectors: dict[str, Tensor] = {}
        for word, vector in _entries(
            self.path, self.dim, {*vocabulary, *map(str.lower, vocabulary)}
        ):
            vectors.setdefault(word, vector)  # the first entry of a word counts
        spelled = {word: word if word in vectors else word.lower() for word in vocabulary}
        if missing := [word for word in vocabulary if spelled[word] not in vectors]:
            raise UserError(
                f"text.encoder.path={self.path} has no vector for {len(missing)} words: "
                f"{', '.join(missing[:5])}; set text.style=name, give other names with text.names, "
                "or use another file"
            )
        means = []
        for words in words_of_texts:
            means.append(torch.stack([vectors[spelled[word]] for word in words]).mean(0))
        return torch.stack(means)


def _width(path: Path) -> int:
    """Return the width of the vectors in a file, from its first entry."""
    for _, vector in _entries(path):
        return len(vector)
    raise UserError(f"text.encoder.path={path} holds no word vectors")


def _entries(
    path: Path, width: int | None = None, wanted: Collection[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Yield words and their vectors [d], of `wanted` words if there are any."""
    with (
        reading(f"text.encoder.path={path} is not in GloVe's or word2vec's text format"),
        path.open(encoding="utf-8", errors="replace") as lines,
    ):
        for number, line in enumerate(lines, 1):
            fields = line.rstrip().split(" ")
            if number == 1 and len(fields) == 2:  # word2vec: number of words, number of columns
                continue
            start = 1 if width is None else len(fields) - width  # some of GloVe's words have blanks
            word = " ".join(fields[: max(start, 0)])
            if wanted and word and word not in wanted:
                continue
            vector = torch.tensor([float(field) for field in fields[start:]])
            if start < 1 or not len(vector) or not vector.isfinite().all():
                raise ValueError(f"line {number}: expected a word and as many numbers as elsewhere")
            yield word, vector


def _words(text: str) -> list[str]:
    stripped = (word.strip(_AROUND_WORDS) for word in _BETWEEN_WORDS.split(text))
    words = [word for word in stripped if word]
    if not words:
        raise UserError(f"text.encoder=vectors: the text '{text}' has no word")
    return words
