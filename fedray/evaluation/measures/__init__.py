"""What is measured in a round, one file each."""
