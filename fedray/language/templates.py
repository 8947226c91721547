"""Templates that make a text of a class's name, with or without a description."""

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
"""CLIP's 80 templates for ImageNet (Radford et al., ICML 2021; official code), with their words."""

ENSEMBLE = (
    *CLIP_ENSEMBLE,
    "a photo of a {label}",
    "a picture of a {label}",
    "an image of a {label}",
    "a photo of one {label}",
    "{label}",
)
"""85 texts, to be averaged: FedGLCL averages as many and does not list them. These are CLIP's 80,
and five simple ones of ours."""
