"""Models whose parameters are prompts around a frozen CLIP; those of one paper are in its method.

base.py      base class
texts.py     the texts of classes, with prompts inserted
context.py   one context (CoOp, PromptFL), or a shared and a local one (FedOTP, PromptFolio)
dual.py      coupled prompts in both towers (MaPLe, DP2FL)
"""

from fedray.models.prompted.base import (
    INIT_STD,
    PromptedClip,
    TextOutput,
    check_depth,
    scaled_products,
)
from fedray.models.prompted.context import ContextClip, PairedClip
from fedray.models.prompted.dual import DualPromptClip
from fedray.models.prompted.texts import PHOTO, ClassTexts, maple_template, unit, word_embeddings
