"""The methods: one file per paper, in families; `fedray.core` holds the interface."""
