"""Templates that make a text of a class's name, with or without a description."""

from __future__ import annotations

DESCRIPTION = "A photo of a {label}: {description}"
"""Eq. (3) of FedTSP, with the article of the official code."""

HANDCRAFTED = "A photo of a {label}."
"""The hand-crafted texts of FedTSP's ablation (Table 4)."""

PLAIN = "a photo of a {label}"
"""FedGLCL's prompt (official code)."""

ENSEMBLE: tuple[str, ...] = (
    "a photo of a {label}",
    "a picture of a {label}",
    "an image of a {label}",
    "a snapshot of a {label}",
    "a close-up photo of a {label}",
    "a photo of a {label} from far away",
    "a photo of one {label}",
    "a photo of several {label}s",
    "a photo of the {label}",
    "a photo of a small {label}",
    "a photo of a large {label}",
    "a photo of a {label} in the middle of the picture",
    "a photo of a {label} at the edge of the picture",
    "a photo of part of a {label}",
    "a blurry photo of a {label}",
    "a sharp photo of a {label}",
    "a dark photo of a {label}",
    "a bright photo of a {label}",
    "a black and white photo of a {label}",
    "a colourful photo of a {label}",
    "a grainy photo of a {label}",
    "a compressed image of a {label}",
    "a thumbnail of a {label}",
    "a photo of a {label} on a plain background",
    "a photo of a {label} in front of a busy background",
    "a photo of a {label} indoors",
    "a photo of a {label} outdoors",
    "a product photo of a {label}",
    "an amateur's photo of a {label}",
    "a professional photo of a {label}",
    "a typical {label}",
    "an unusual {label}",
    "a drawing of a {label}",
    "a painting of a {label}",
    "a sketch of a {label}",
    "a cartoon of a {label}",
    "a rendering of a {label}",
    "a toy {label}",
    "this is a {label}",
    "there is a {label} in this picture",
)
"""For the average over many templates (FedGLCL section 5). These are ours; the paper averages 85
that it does not list."""
