"""Local: every client trains alone; many methods equal it when their own term has weight 0."""

from fedray.core import LocalTraining, method


@method("local", "Local", "-")
class Local(LocalTraining):
    """Local training with the cross-entropy, without communication."""

    dense = True
