"""The texts that represent the classes, and the encoders that embed them.

descriptions/    descriptions of the classes of shipped data sets, JSON
descriptions.py  reading and checking them
templates.py     templates around a class's name
styles.py        Eq. (3) of FedTSP: the texts of a class, made in one of the registered styles
generate.py      asking a large language model for descriptions of new classes
encoders/        frozen text encoders behind one interface, registered by name
prompts.py       context tokens, Eq. (4) of FedTSP
prototypes.py    text prototypes under prompts
passes.py        passes of prompts through an encoder, remembered
text_cache.py    tokens and features of texts, kept once per node
trainable.py     a tower whose last blocks learn
tower.py         an encoder with the classes' texts

Importing this package imports neither torch nor a model library.
"""
