"""A small CLIP, trained from image-text pairs that are made of labelled images.

spec.py          the typed configuration; small.yaml is the shipped model's
captions.json    for each class a caption's noun, its kind, and the kind of that kind
captions.py      texts of classes, and the words the text tower is taught
vocabulary.py    a pruned WordPiece vocabulary
distillation.py  the text tower's distillation data: texts and a teacher's vectors
stages.py        the two stages: the text tower from a teacher, then the image tower
images.py        the training images, and their random views
loop.py          the training loop of one worker, the same on Ray Train and in this process
scores.py        zero-shot accuracy
export.py        the folder that open_clip loads
model_card.py    on what, how and how well
command.py       `python -m fedray.pretrain [CONFIG] [key=value ...]`
"""
