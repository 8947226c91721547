"""The frozen CLIP.

sources.py   the registry of CLIPs and the sources of their weights
frozen.py    a CLIP of open_clip with frozen weights, split into two towers that accept prompts
vision.py    the vision tower, which accepts prompts
features.py  the node's cache of image features
small/       the package's small CLIP, with a model card
"""

from fedray.models.clip.frozen import FrozenClip, load_clip
from fedray.models.clip.sources import ClipChoice, clips, small_clip_folder
