"""Where images come from, which client has which, and what identifies both.

configurable.py  what is chosen by name and made from typed parameters
sources/         one file per data source, which lists rows
partitions/      one file per partition of images over clients
splits.py        which images are for training, from a file
imageset.py      a decoded, labelled set of images
decoding.py      from encoded images to one array
cache.py         how decoded images are kept, once per node
augment.py       what training images go through
federated.py     images, and each client's indices
evolution.py     what clients hold from later rounds on
validation.py    validation images taken from training images
inspect.py       a folder of images, inspected before a run
plot.py          a plot of a partition, and of a few images
"""

from fedray.data.decoding import ReadOptions
from fedray.data.federated import EvalSet, FederatedData, federate, local_split
from fedray.data.imageset import Domains, ImageSet
from fedray.data.partitions import build_partition
from fedray.data.sources import load_images
