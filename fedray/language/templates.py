"""Templates for texts made of a class's name, with or without a description."""

from __future__ import annotations

from pathlib import Path

DESCRIPTION = "A photo of a {label}: {description}"
"""Eq. (3) of FedTSP, with the article of the official code."""

HANDCRAFTED = "A photo of a {label}."
"""The hand-crafted texts of FedTSP's ablation (Table 4)."""

PLAIN = "a photo of a {label}"
"""FedGLCL's prompt (official code)."""

CLIP_ENSEMBLE = tuple(
    (Path(__file__).parent / "clip_templates.txt").read_text(encoding="utf-8").splitlines()
)
"""CLIP's 80 templates for ImageNet (Radford et al., ICML 2021), as in the official code."""

ENSEMBLE = (
    *CLIP_ENSEMBLE,
    "a photo of a {label}",
    "a picture of a {label}",
    "an image of a {label}",
    "a photo of one {label}",
    "{label}",
)
"""85 templates for averaged texts: CLIP's 80 and five of ours. FedGLCL averages 85, too, but does
not list them."""
