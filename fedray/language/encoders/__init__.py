"""Frozen text encoders behind one interface; registering a class adds an encoder.

base.py              the interface, and the registry of encoders
bert.py              BERT, MiniLM and ALIGN's text tower, by transformers
bert_files.py        find and load a BERT and its tokenizer
kernels.py           repeatable kernels, and bfloat16
openclip.py          text towers of CLIP models, through open_clip
openclip_weights.py  find and read the weights of CLIP models
clip_layouts.py      convert CLIPs of transformers to open_clip's layout
vectors.py           word vectors from a file
controls.py          random or orthogonal vectors, as controls without language
weights.py           weight files: read, download and hash them; the errors if that fails
"""

from fedray.language.encoders.base import EncoderChoice, TextEncoder, TokenEncoder, Tokens, encoders
