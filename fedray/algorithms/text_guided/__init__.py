"""Image features that align with a language model's embeddings of class descriptions."""
