"""Class prototypes instead of weights, for clients with models of their own."""
