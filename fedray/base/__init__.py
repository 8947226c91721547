"""What knows nothing of the rest: errors, random streams, trees of tensors, counts, texts."""
