"""Personal models: clients train alone, or share only a part of their model."""
