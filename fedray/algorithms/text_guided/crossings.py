"""FedGLCL with the regularisers of FedProx and MOON (FedGLCL Table 2).

Yan et al., "On the Importance of Language-driven Representation Learning for Heterogeneous
Federated Learning", ICLR 2025.

    contrast of images with texts -> text_contrast  (text_guided/fedglcl.py)
    FedProx's mu/2 ||w - w_t||² -> proximal_term  (losses.py)
    MOON's contrast of models -> model_contrast  (averaging/moon.py)
"""

from __future__ import annotations

from fedray.algorithms.averaging.fedprox import FedProx
from fedray.algorithms.averaging.moon import Moon
from fedray.algorithms.text_guided.fedglcl import FedGLCL
from fedray.core import method


@method("fedglcl_fedprox", "FedGLCL + FedProx", FedGLCL.paper)
class FedGLCLProx(FedProx, FedGLCL):
    """FedGLCL with FedProx's proximal term; μ = 0 gives FedGLCL."""


@method("fedglcl_moon", "FedGLCL + MOON", FedGLCL.paper)
class FedGLCLMoon(Moon, FedGLCL):
    """FedGLCL with MOON's contrast of models; μ = 0 gives FedGLCL."""
