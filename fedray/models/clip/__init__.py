"""The promptable CLIP.

frozen.py    a CLIP of open_clip whose weights never change, taken apart
prompted.py  models whose parameters are prompts around it
features.py  what its vision tower makes of images, computed once per node and kept on disk
small/       a small CLIP of our own, with its card
"""

from fedray.models.clip.frozen import ClipSpec, FrozenClip, load_clip, small_clip_folder
from fedray.models.clip.prompted import ClassTexts, PromptedClip, Stage

__all__ = [
    "ClassTexts",
    "ClipSpec",
    "FrozenClip",
    "PromptedClip",
    "Stage",
    "load_clip",
    "small_clip_folder",
]
