"""Averaging of one global model, whole or in part."""
