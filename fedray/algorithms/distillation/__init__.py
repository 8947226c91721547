"""Distillation through class outputs, a generator or a small shared model."""
