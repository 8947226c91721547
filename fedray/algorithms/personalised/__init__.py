"""Personal models: clients train alone, or keep a part of what is averaged."""
