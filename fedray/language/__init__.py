"""The texts that represent classes, and the text encoders that embed them.

descriptions/    class descriptions of shipped data sets, JSON
descriptions.py  read and check descriptions
names.py         lists of alternative class names
styles.py        make the texts of a class in a registered style, Eq. (3) of FedTSP
generate.py      ask a large language model for descriptions of new classes
encoders/        frozen text encoders behind one interface, registered by name
prototypes.py    insert prompts into texts, Eq. (4) of FedTSP; text prototypes under them
distinct.py      compare classes once by their vectors or tokens
text_cache.py    the node's cache of text features
trainable.py     a text tower whose last blocks are trained
tower.py         a text encoder together with the texts of the classes

Importing this package imports neither torch nor a model library.
"""
