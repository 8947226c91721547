"""The federated learning methods, one file per paper, grouped in families.

`fedray.core` defines the interface that they implement.
"""
