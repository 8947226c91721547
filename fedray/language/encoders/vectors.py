"""Word vectors out of a file: language without a language model."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from fedray.errors import UserError
from fedray.language.encoders.base import TokenlessEncoder
from fedray.language.encoders.spec import EncoderSpec
from fedray.language.encoders.weights import digest

_BETWEEN_WORDS = re.compile(r"[\s_/]+")
_AROUND_WORDS = "\"'.,:;!?()[]"


def identity(spec: EncoderSpec) -> str:
    """Names the family and the file's content.

    Raises:
        UserError: when there is no such file.
    """
    return f"vectors:{digest([_file(spec)])}"


class VectorsEncoder(TokenlessEncoder):
    """The mean of the vectors of a text's words (GloVe's or word2vec's text format, also .gz).

    Words end at blanks, `_` and `/`, without punctuation around them. A word is looked up as it
    is, then in lower case, then as its parts between hyphens. Names of classes are meant
    (`text.style: name`): the words of a template count like any others.

    Args:
        spec: name and path.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(spec.name)
        self.path = _file(spec)
        self.identity = identity(spec)
        with _open(self.path) as lines:
            self.dim, _ = _layout(lines, self.path)

    def features(self, texts: Sequence[str]) -> Tensor:
        """Means [T, d] of the words' vectors, not normalised.

        Raises:
            UserError: when a word has no vector, or a line that is needed cannot be read.
        """
        spelled = [[_spellings(word) for word in _words(text)] for text in texts]
        vectors = self._read(
            {s for words in spelled for ways in words for way in ways for s in way}
        )
        rows, missing = [], dict[str, None]()
        for text, words in zip(texts, spelled, strict=True):
            found = [_look_up(ways, vectors) for ways in words]
            missing |= {ways[0][0]: None for ways, f in zip(words, found, strict=True) if not f}
            if not words:
                raise UserError(f"text.encoder=vectors: the text '{text}' has no word")
            own = [vector for parts in found for vector in parts]
            rows.append(torch.stack(own).mean(0) if own else torch.zeros(self.dim))
        if missing:
            names = ", ".join(f"'{word}'" for word in list(missing)[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise UserError(
                f"text.encoder.path={self.path} has no vector for {names}{more}; set "
                "text.style=name, give other names by text.names, or use another file"
            )
        return torch.stack(rows).to(self._device)

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
                    raise _torn(self.path, number)
                word = " ".join(fields[: -self.dim])  # some of GloVe's words have blanks
                if word in wanted and word not in vectors:
                    vectors[word] = _vector(fields[-self.dim :], self.path, number)
        return vectors


def _file(spec: EncoderSpec) -> Path:
    path = Path(spec.path or "")
    if not path.is_file():
        raise UserError(
            f"text.encoder.path={path} is not a file; pass one of word vectors in GloVe's or "
            "word2vec's text format"
        )
    return path


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _layout(lines: TextIO, path: Path) -> tuple[int, int]:
    """The vectors' width, and the lines before the first of them; stands there afterwards."""
    try:
        at = lines.tell()
        fields = lines.readline().rstrip().split(" ")
        if len(fields) == 2:  # word2vec: how many words, how many numbers
            return int(fields[1]), 1
        _vector(fields[1:], path, 1)
        lines.seek(at)
        return len(fields) - 1, 0
    except (OSError, EOFError, ValueError):
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
        raise _torn(path, line)
    return vector


def _torn(path: Path, line: int) -> UserError:
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


def _look_up(ways: Sequence[tuple[str, ...]], vectors: Mapping[str, Tensor]) -> list[Tensor]:
    """The vectors of the first spelling that the file has whole; none without one."""
    for way in ways:
        if all(entry in vectors for entry in way):
            return [vectors[entry] for entry in way]
    return []
