"""Models whose parameters are prompts around a frozen CLIP.

base.py       base class
texts.py      the texts of classes, with prompts inserted
fixed.py      no prompts: zero-shot
context.py    one context (CoOp, PromptFL)
paired.py     a shared and a local context (PromptFolio)
transport.py  two contexts matched with patches by optimal transport (FedOTP)
low_rank.py   a context with a correction of low rank (FedPGP)
generator.py  a context that a network generates (FedTPG)
dual.py       coupled prompts in both towers (MaPLe, DP2FL)
groups.py     several groups of prompts in both towers (FedMGP)
adapter.py    a gate on image features (FedCLIP)
"""

from fedray.models.prompted.adapter import AdapterClip
from fedray.models.prompted.base import PromptedClip
from fedray.models.prompted.context import ContextClip
from fedray.models.prompted.dual import DualPromptClip
from fedray.models.prompted.fixed import ZeroShotClip
from fedray.models.prompted.generator import GeneratorClip
from fedray.models.prompted.groups import GroupedClip, GroupedOutput
from fedray.models.prompted.low_rank import ContrastOutput, PersonalClip
from fedray.models.prompted.paired import PairedClip, PortfolioClip
from fedray.models.prompted.texts import PHOTO, ClassTexts
from fedray.models.prompted.transport import TransportClip
