"""Exchange of class prototypes instead of weights; clients may have different models."""
