"""Images, their partition over clients, and the identity of both.

configurable.py  base of objects chosen by name and built from typed parameters
sources/         one file per data source, which lists rows
partitions/      partitions of images over clients, by kind
known/           the public data sets that fedray knows, one YAML file each
folders.py       class folders, folders of splits, files that are not read
listing.py       classes and domains of listed images: chosen, named, checked
splits.py        training and test images listed in a file
imageset.py      a decoded, labelled set of images
decoding.py      from encoded images to one array
cache.py         decoded images on disk, once per node
augment.py       augmentation of training images
federated.py     images, and each client's indices
evolution.py     phases in which clients' data changes
validation.py    validation images taken from training images
inspect.py       inspection of an image folder before a run
plot.py          plots of a partition, and of sample images
"""

from fedray.data.decoding import ReadOptions
from fedray.data.federated import FederatedData, IndexedSet, federate, local_split
from fedray.data.imageset import Domains, ImageSet
from fedray.data.sources import load_images
