"""What every method must obey, on experiments drawn at random: `fedray check`, and the fuzzer."""
