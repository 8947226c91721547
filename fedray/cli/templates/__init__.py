"""What `fedray new` writes: files that run as they are, under other names."""
