"""What lies on a disk."""
