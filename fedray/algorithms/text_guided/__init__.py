"""Alignment of image features with a language model's embeddings of class descriptions."""
