"""A pruned WordPiece vocabulary, and its tokenizer as open_clip reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[SOT]", "[EOT]"
_PIECE = re.compile(r"(##)?[a-z0-9]+|[!-/:-@\[-`{-~]")
_WORD = re.compile(r"[a-z]{3,}")


def teacher_vocabulary(folder: Path) -> dict[str, int]:
    """Return the word pieces of a teacher with their ids."""
    from transformers import AutoTokenizer

    vocabulary: dict[str, int] = AutoTokenizer.from_pretrained(
        folder, local_files_only=True
    ).get_vocab()
    return vocabulary


def whole_words(vocabulary: Mapping[str, int], count: int) -> list[str]:
    """Return the first `count` pieces that are words of at least three letters, by id."""
    words = sorted((piece for piece in vocabulary if _WORD.fullmatch(piece)), key=vocabulary.get)  # type: ignore[arg-type]
    return words[:count]


def prune(vocabulary: Mapping[str, int], count: int, texts: Iterable[str]) -> list[str]:
    """Return the pieces that are kept; the index of a piece in the list is its id.

    Args:
        vocabulary: the teacher's pieces with their ids.
        count: how many pieces are kept, in the order of ids, which is roughly that of frequency.
        texts: their words are kept too if the teacher has them, as are all single characters.

    Returns:
        Padding first, the start and end token last: open_clip reads the largest id.
    """
    usual = sorted((p for p in vocabulary if _PIECE.fullmatch(p)), key=vocabulary.get)  # type: ignore[arg-type]
    needed = {word for text in texts for word in re.findall(r"[a-z0-9]+", text.lower())}
    kept = set(usual[:count])
    kept |= {p for p in usual if len(p.removeprefix("##")) == 1 or p in needed}
    return [PAD, UNKNOWN, *(piece for piece in usual if piece in kept), START, END]


def write_tokenizer(pieces: Sequence[str], context_length: int, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as `open_clip.get_tokenizer` reads them."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    ids = {piece: number for number, piece in enumerate(pieces)}
    tokenizer: Any = Tokenizer(WordPiece(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, ids[START]), (END, ids[END])]
    )
    tokenizer.add_special_tokens([PAD, UNKNOWN, START, END])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "bos_token": START,
        "eos_token": END,
    }
    text = json.dumps(config, indent=1) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
