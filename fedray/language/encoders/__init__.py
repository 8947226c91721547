"""Frozen text encoders behind one interface; registering a class adds an encoder.

base.py              the interface, and the registry of encoders
bert.py              BERT, MiniLM and ALIGN's text tower, by transformers
openclip.py          text towers of CLIP models, through open_clip
clip_weights.py      find and read the weights of CLIP models, also of transformers
vectors.py           word vectors from a file
controls.py          random or orthogonal vectors, as controls without language
weights.py           weight files and folders: find, download, read and hash them
"""

from fedray.language.encoders.base import EncoderChoice, TextEncoder, TokenEncoder, Tokens, encoders
