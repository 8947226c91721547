"""Files that `fedray new` writes under other names; each runs without changes."""
