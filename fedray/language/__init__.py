"""What the server's language model reads, and what it answers.

descriptions/    descriptions of the classes of shipped data sets, JSON
descriptions.py  reading and checking them; Eq. (3) of FedTSP: the texts
generate.py      asking a large language model for descriptions of new classes
encoders/        frozen text encoders behind one interface
prompts.py       context tokens, Eq. (4) of FedTSP
prototypes.py    text prototypes, and a cache of embeddings that no prompt touches
tower.py         an encoder together with the classes' texts

Importing this package imports neither torch nor a model library.
"""
