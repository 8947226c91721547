"""The texts that represent the classes, and the encoders that embed them.

descriptions/    descriptions of the classes of shipped data sets, JSON
descriptions.py  reading and checking them
templates.py     templates around a class's name
styles.py        Eq. (3) of FedTSP: the texts of a class, made in one of the registered styles
generate.py      asking a large language model for descriptions of new classes
encoders/        frozen text encoders behind one interface, registered by name
prompts.py       context tokens, Eq. (4) of FedTSP
prototypes.py    text prototypes, and a cache of embeddings that no prompt touches
tokenised.py     a cache of tokens
activations.py   what stands between a block's linear maps
trainable.py     a tower whose last blocks learn
tower.py         an encoder with the classes' texts

Importing this package imports neither torch nor a model library.
"""
