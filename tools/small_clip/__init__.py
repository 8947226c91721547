"""Training of the small CLIP that ships with fedray; README.md says how it was made.

spec.py        the typed configuration; small.yaml is the shipped model's
texts.py       the text tower's training data: class captions, words, a teacher's vectors
captions.json  the nouns of each class: a name, a kind and a wider kind
tokenizer.py   a pruned WordPiece vocabulary as open_clip reads it
images.py      the training images of several sets
model.py       the two towers, and the folder that open_clip loads
stages.py      the losses of the two stages: text tower first, then image tower
loop.py        the training loop of one worker
command.py     the command, and Ray Train
"""
