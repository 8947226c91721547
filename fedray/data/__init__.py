"""Where images come from, who owns which, and what identifies both.

sources/      one file per place images come from
partitions/   one file per way of dealing images to clients
splits.py     which images are for training, from a file
imageset.py   a decoded, labelled set of images
decoding.py   from encoded images to one array
cache.py      decoded images, once per node, mapped
augment.py    what training images go through
federated.py  images, and each client's indices
picture.py    a partition, drawn
"""

from fedray.data.federated import FederatedData, federate, local_split
from fedray.data.imageset import Domains, ImageSet
from fedray.data.sources import load_images

__all__ = ["Domains", "FederatedData", "ImageSet", "federate", "load_images", "local_split"]
