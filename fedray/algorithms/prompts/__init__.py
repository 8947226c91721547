"""Training of prompts around a frozen CLIP."""
