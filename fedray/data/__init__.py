"""Images, their partition over clients, and the identity of both.

sources/         one file per data source, which lists rows
partitions/      partitions of images over clients, by kind
known/           the public data sets that fedray knows, one YAML file each
folders.py       class folders, folders of splits, files that are not read
listing.py       rows of a source: chosen, named, split, checked
splits.py        training and test images listed in a file
imageset.py      a decoded, labelled set of images
decoding.py      from encoded images to one array
augment.py       augmentation of training images
federated.py     images, and each client's indices
evolution.py     phases in which clients' data changes
validation.py    validation images taken from training images
inspect.py       inspection of an image folder before a run
public.py        images that belong to no client
downloads.py     where files of others come from; download, check, unpack
weights.py       pre-trained weights, and which are on this machine
plot.py          plots of a partition, and of sample images
"""

from fedray.data.decoding import ReadOptions
from fedray.data.federated import FederatedData, IndexedSet, federate, local_split
from fedray.data.imageset import Domains, ImageSet
from fedray.data.sources import load_images
