"""Frozen text encoders behind one interface; a file that registers one is enough to add it.

base.py      the interface, and the registry of the encoders
bert.py      BERT and its relatives
bert_files.py  their files: weights, read directly or by transformers, and tokenizers
packed.py    BERT's arithmetic on texts without padding
align.py     ALIGN's text tower, through transformers
minilm.py    all-MiniLM-L6-v2 out of an installed package
openclip.py  text towers of CLIP models, through open_clip
vectors.py   word vectors out of a file
controls.py  no language at all: random or orthogonal vectors
openclip_weights.py  where CLIP models come from, and how they are read
weights.py   files of weights: their identity, the error when they are missing
"""

from fedray.language.encoders.base import (
    EncoderChoice,
    TextEncoder,
    TokenEncoder,
    Tokens,
    encoder_choice,
    encoders,
)
