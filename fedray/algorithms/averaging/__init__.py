"""One global model, whole or in part, averaged from what the clients trained."""
