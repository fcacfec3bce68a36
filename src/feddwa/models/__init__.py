"""Networks: the paper's, small ones for own data, own code, and those of torchvision, timm and transformers.

Every network of this package is a `Network`: a body from a sample to features, and a head, the last linear layer.
Methods that personalise the head find it under that name. Initial values come from torch's global generator.
"""

from feddwa.models import adapters
from feddwa.models.network import Network, Shape
from feddwa.models.registry import MODELS, Model, adopt, find, from_library, make
from feddwa.models.weights import store

__all__ = ["MODELS", "Model", "Network", "Shape", "adapters", "adopt", "find", "from_library", "make", "store"]
