"""Prompts around a frozen CLIP."""
