"""Templates of `fedray new`; each file runs without changes."""
