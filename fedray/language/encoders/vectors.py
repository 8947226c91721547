"""Word vectors out of a file: language without a language model."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from fedray.config import Frozen, InputFile
from fedray.errors import UserError
from fedray.language.encoders.base import EncoderChoice, TextEncoder, encoders
from fedray.language.encoders.weights import digest

_BETWEEN_WORDS = re.compile(r"[\s_/]+")
_AROUND_WORDS = "\"'.,:;!?()[]"


class VectorsParams(Frozen):
    """Which word vectors."""

    path: InputFile
    """A file in GloVe's or word2vec's text format, .gz or not."""


@encoders.add
class VectorsChoice(EncoderChoice[VectorsParams]):
    """The mean of the vectors of a text's words, out of a file."""

    name = "vectors"
    Params = VectorsParams
    paper = "Pennington et al., GloVe, EMNLP 2014; Mikolov et al., word2vec, NeurIPS 2013"

    def file(self) -> Path:
        """Return the file of word vectors.

        Raises:
            UserError: if there is no such file.
        """
        path = Path(self.params.path)
        if not path.is_file():
            raise UserError(
                f"text.encoder.path={path} is not a file; pass one of word vectors in GloVe's or "
                "word2vec's text format"
            )
        return path

    def identity(self) -> str:
        return f"{self.name}:{digest([self.file()])}"

    def width(self) -> int:
        return _width(self.file())

    def build(self) -> VectorsEncoder:
        """Open the file; the vectors are read when texts are asked for."""
        return VectorsEncoder(self.file(), self.identity())


class VectorsEncoder(TextEncoder):
    """The mean of the vectors of a text's words.

    Words end at blanks, `_` and `/`, without punctuation around them. A word is looked up as it
    is, then in lower case, then as its parts between hyphens. It is meant for names of classes
    (`text.style: name`): the words of a template count like any others.

    Args:
        path: the file: a word and its numbers in a line, separated by single blanks; word2vec's
            first line, with the numbers of words and columns, is skipped.
        identity: see `TextEncoder`.

    Raises:
        UserError: if the file is not in this format.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity, self.dim = path, identity, _width(path)

    def features(self, texts: Sequence[str]) -> Tensor:
        """Return means [T, d] of the words' vectors, not normalised."""
        words = {text: _words(text) for text in texts}
        wanted = {entry for of in words.values() for word in of for entry in sum(_ways(word), ())}
        vectors = self._read(wanted)
        found = {word: _look_up(word, vectors) for of in words.values() for word in of}
        if missing := [word for word, entries in found.items() if not entries]:
            names = ", ".join(f"'{word}'" for word in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise UserError(
                f"text.encoder.path={self.path} has no vector for {names}{more}; set "
                "text.style=name, give other names by text.names, or use another file"
            )
        rows = [torch.stack([v for word in words[t] for v in found[word]]).mean(0) for t in texts]
        return torch.stack(rows)

    def _read(self, wanted: set[str]) -> dict[str, Tensor]:
        """Read the vectors [d] of those words that the file has; the first of each."""
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
            if len(fields) == 2:  # word2vec: how many words, how many numbers
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
        f"text.encoder.path={path}, line {line}: expected a word and its numbers, as many as in "
        "the other lines; mend or remove it"
    )


def _words(text: str) -> list[str]:
    stripped = (word.strip(_AROUND_WORDS) for word in _BETWEEN_WORDS.split(text))
    words = [word for word in stripped if word]
    if not words:
        raise UserError(f"text.encoder=vectors: the text '{text}' has no word")
    return words


def _ways(word: str) -> list[tuple[str, ...]]:
    """Return the spellings of a word in the order of look-up, each as one or more entries."""
    return [(word,), (word.lower(),), tuple(part for part in word.lower().split("-") if part)]


def _look_up(word: str, vectors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the vectors of the first spelling whose entries are all there; none without one."""
    for entries in _ways(word):
        if entries and all(entry in vectors for entry in entries):
            return [vectors[entry] for entry in entries]
    return []
