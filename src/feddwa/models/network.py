"""A network as a body and a head, which is what methods that personalise the head alone look for."""

from torch import Tensor, nn

from feddwa.data.inputs import Shape

__all__ = ["Network", "Shape"]


class Network(nn.Module):
    """A body that turns a sample into features, and the linear head on them."""

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *shape) -> (B, classes) logits, or (B, L, classes) where the body has features of every position."""
        logits: Tensor = self.head(self.body(x))
        return logits
