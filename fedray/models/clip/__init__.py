"""The frozen CLIP.

sources.py            which CLIPs there are, and where their weights come from
frozen.py             a CLIP of open_clip with frozen weights, split so that prompts fit in
vision.py             its vision tower, with a way in for prompts
features.py           what the vision tower makes of images, once per node and kept on disk
small/                the package's small CLIP, with its model card
"""

from fedray.models.clip.frozen import FrozenClip, load_clip
from fedray.models.clip.sources import ClipChoice, clips, small_clip_folder
