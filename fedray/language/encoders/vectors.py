"""A text encoder that averages word vectors from a file."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from fedray.base.errors import UserError
from fedray.config import Frozen, InputFile
from fedray.language.encoders.base import EncoderChoice, TextEncoder, encoders
from fedray.language.encoders.weights import digest

_BETWEEN_WORDS = re.compile(r"[\s_/]+")
_AROUND_WORDS = "\"'.,:;!?()[]"


class VectorsParams(Frozen):
    """The source of word vectors."""

    path: InputFile
    """File in GloVe's or word2vec's text format, optionally compressed (.gz)."""


@encoders.add
class VectorsChoice(EncoderChoice[VectorsParams]):
    """The mean of the word vectors of a text, read from a file."""

    name = "vectors"
    Params = VectorsParams
    paper = "Pennington et al., GloVe, EMNLP 2014; Mikolov et al., word2vec, NeurIPS 2013"

    def file(self) -> Path:
        """Return the file of word vectors.

        Raises:
            UserError: if the file does not exist.
        """
        path = Path(self.params.path)
        if not path.is_file():
            raise UserError(
                f"text.encoder.path={path} is not a file; pass word vectors in GloVe's or "
                "word2vec's text format"
            )
        return path

    def identity(self) -> str:
        return f"{self.name}:{digest([self.file()])}"

    def width(self) -> int:
        return _width(self.file())

    def build(self) -> VectorsEncoder:
        return VectorsEncoder(self.file(), self.identity())


class VectorsEncoder(TextEncoder):
    """An encoder that returns the mean of the word vectors of a text.

    Words are separated by blanks, `_` and `/`; punctuation around them is removed. A word is looked
    up as written, then in lower case, then as its parts between hyphens. The encoder is meant for
    class names (`text.style: name`), because the words of a template count like any others.

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
        words = {text: _words(text) for text in texts}
        wanted = {entry for of in words.values() for word in of for entry in sum(_ways(word), ())}
        vectors = self._read(wanted)
        entries_of = {word: _look_up(word, vectors) for of in words.values() for word in of}
        if missing := [word for word, entries in entries_of.items() if not entries]:
            names = ", ".join(f"'{word}'" for word in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise UserError(
                f"text.encoder.path={self.path} has no vector for {names}{more}; set "
                "text.style=name, give other names with text.names, or use another file"
            )
        by_text = ([v for word in words[text] for v in entries_of[word]] for text in texts)
        return torch.stack([torch.stack(entries).mean(0) for entries in by_text])

    def _read(self, wanted: set[str]) -> dict[str, Tensor]:
        """Read the vectors [d] of wanted words; the first entry of a word counts."""
        vectors: dict[str, Tensor] = {}
        with _open(self.path) as lines:
            for number, line in enumerate(lines, 1):
                fields = line.rstrip().split(" ")
                if number == 1 and len(fields) == 2:
                    continue
                word = " ".join(fields[: -self.dim])  # some of GloVe's words have blanks
                if not word:
                    raise _unreadable(self.path, number)
                if word in wanted and word not in vectors:
                    vectors[word] = _vector(fields[-self.dim :], self.path, number)
        return vectors


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _width(path: Path) -> int:
    """Return the width of the vectors, from the first line."""
    try:
        with _open(path) as lines:
            fields = lines.readline().rstrip().split(" ")
            if len(fields) == 2:  # word2vec: number of words, number of columns
                return int(fields[1])
            return len(_vector(fields[1:], path, 1))
    except (OSError, EOFError, ValueError, UserError):
        raise UserError(
            f"text.encoder.path={path} is not in GloVe's or word2vec's text format: expected lines "
            "of a word and its numbers"
        ) from None


def _vector(fields: Sequence[str], path: Path, line: int) -> Tensor:
    try:
        vector = torch.tensor([float(field) for field in fields])
    except ValueError:
        raise _unreadable(path, line) from None
    if not len(vector) or not vector.isfinite().all():
        raise _unreadable(path, line)
    return vector


def _unreadable(path: Path, line: int) -> UserError:
    return UserError(
        f"text.encoder.path={path}, line {line}: expected a word and as many numbers as in the "
        "other lines; correct or remove the line"
    )


def _words(text: str) -> list[str]:
    stripped = (word.strip(_AROUND_WORDS) for word in _BETWEEN_WORDS.split(text))
    words = [word for word in stripped if word]
    if not words:
        raise UserError(f"text.encoder=vectors: the text '{text}' has no word")
    return words


def _ways(word: str) -> list[tuple[str, ...]]:
    """Return the spellings to look up for a word, in order, each as one or more entries."""
    return [(word,), (word.lower(),), tuple(part for part in word.lower().split("-") if part)]


def _look_up(word: str, vectors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the vectors of the first spelling whose entries all exist; empty without one."""
    for entries in _ways(word):
        if entries and all(entry in vectors for entry in entries):
            return [vectors[entry] for entry in entries]
    return []
