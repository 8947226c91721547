"""Frozen text encoders behind one interface.

base.py      the interface
spec.py      which encoder, typed: `text.encoder` of an experiment
bert.py      BERT and its relatives through transformers; MiniLM out of an installed package
openclip.py  text towers of CLIP models through open_clip
openclip_weights.py  where CLIP models come from, and how they are read
vectors.py   word vectors out of a file
controls.py  no language at all: random or orthogonal vectors
weights.py   files of weights: where they are and what is in them
"""

from fedray.language.encoders.base import TextEncoder, Tokens
from fedray.language.encoders.spec import EncoderSpec, build_encoder, encoder_identity

__all__ = ["EncoderSpec", "TextEncoder", "Tokens", "build_encoder", "encoder_identity"]
