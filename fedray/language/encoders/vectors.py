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
from fedray.language.encoders.base import EncoderChoice, TokenlessEncoder, encoders
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
    promptable = False

    def file(self) -> Path:
        """The file of word vectors.

        Raises:
            UserError: when there is no such file.
        """
        path = Path(self.params.path)
        if not path.is_file():
            raise UserError(
                f"text.encoder.path={path} is not a file; pass one of word vectors in GloVe's or "
                "word2vec's text format"
            )
        return path

    def identity(self) -> str:
        """Names the kind of encoder and the file's content.

        Raises:
            UserError: when there is no such file.
        """
        return f"{self.name}:{digest([self.file()])}"

    def width(self) -> int:
        """How many numbers a line has.

        Raises:
            UserError: when there is no such file, or it has another format.
        """
        path = self.file()
        with _open(path) as lines:
            return _layout(lines, path)[0]

    def build(self) -> VectorsEncoder:
        """Open the file; the vectors are read when texts are asked for.

        Raises:
            UserError: when there is no such file, or it has another format.
        """
        return VectorsEncoder(self.file(), self.identity())


class VectorsEncoder(TokenlessEncoder):
    """The mean of the vectors of a text's words (GloVe's or word2vec's text format, also .gz).

    Words end at blanks, `_` and `/`, without punctuation around them. A word is looked up as it
    is, then in lower case, then as its parts between hyphens. Names of classes are meant
    (`text.style: name`): the words of a template count like any others.

    Args:
        path: the file.
        identity: see `TextEncoder`.

    Raises:
        UserError: when the file is not in one of these formats.
    """

    def __init__(self, path: Path, identity: str) -> None:
        super().__init__(VectorsChoice.name)
        self.path = path
        self.identity = identity
        with _open(self.path) as lines:
            self.dim, _ = _layout(lines, self.path)

    def features(self, texts: Sequence[str]) -> Tensor:
        """Means [T, d] of the words' vectors, not normalised.

        Raises:
            UserError: when a word has no vector, or a line that is needed cannot be read.
        """
        spellings = [[_spellings(word) for word in _words(text)] for text in texts]
        wanted = {part for words in spellings for word in words for way in word for part in way}
        vectors = self._read(wanted)
        rows, missing = [], dict[str, None]()
        for text, words in zip(texts, spellings, strict=True):
            if not words:
                raise UserError(f"text.encoder=vectors: the text '{text}' has no word")
            found = [_look_up(word, vectors) for word in words]
            missing |= {word[0][0]: None for word, f in zip(words, found, strict=True) if not f}
            parts = [vector for vectors_of_word in found for vector in vectors_of_word]
            rows.append(torch.stack(parts).mean(0) if parts else torch.zeros(self.dim))
        if missing:
            raise self._no_vectors(list(missing))
        return torch.stack(rows).to(self._device)

    def _no_vectors(self, words: Sequence[str]) -> UserError:
        names = ", ".join(f"'{word}'" for word in words[:5])
        more = f" and {len(words) - 5} more" if len(words) > 5 else ""
        return UserError(
            f"text.encoder.path={self.path} has no vector for {names}{more}; set "
            "text.style=name, give other names by text.names, or use another file"
        )

    def _read(self, wanted: set[str]) -> dict[str, Tensor]:
        """The vectors [d] of those words that the file has, by one pass; the first of each."""
        vectors: dict[str, Tensor] = {}
        with _open(self.path) as lines:
            _, start = _layout(lines, self.path)
            for number, line in enumerate(lines, start + 1):
                if not line.strip():
                    continue
                fields = line.rstrip().split(" ")
                if len(fields) <= self.dim:
                    raise _unreadable(self.path, number)
                word = " ".join(fields[: -self.dim])  # some of GloVe's words have blanks
                if word in wanted and word not in vectors:
                    vectors[word] = _vector(fields[-self.dim :], self.path, number)
        return vectors


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _layout(lines: TextIO, path: Path) -> tuple[int, int]:
    """The vectors' width, and the number of lines before them, behind which it leaves the file."""
    try:
        start = lines.tell()
        fields = lines.readline().rstrip().split(" ")
        if len(fields) == 2:  # word2vec: how many words, how many numbers
            return int(fields[1]), 1
        _vector(fields[1:], path, 1)
        lines.seek(start)
        return len(fields) - 1, 0
    except (OSError, EOFError, ValueError, UserError):
        raise UserError(
            f"text.encoder.path={path} is not in GloVe's or word2vec's text format: expected lines "
            "of a word and its numbers"
        ) from None


def _vector(fields: Sequence[str], path: Path, line: int) -> Tensor:
    try:
        vector = torch.tensor([float(field) for field in fields])
    except ValueError:
        vector = torch.empty(0)
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
    return [word for word in stripped if word]


def _spellings(word: str) -> list[tuple[str, ...]]:
    """What to look a word up as, in order; each as one or more entries."""
    parts = tuple(part for part in word.lower().split("-") if part)
    return [(word,), (word.lower(),), *([parts] if len(parts) > 1 else [])]


def _look_up(spellings: Sequence[tuple[str, ...]], vectors: Mapping[str, Tensor]) -> list[Tensor]:
    """The vectors of the first spelling that the file has whole; none without one."""
    for entries in spellings:
        if all(entry in vectors for entry in entries):
            return [vectors[entry] for entry in entries]
    return []
