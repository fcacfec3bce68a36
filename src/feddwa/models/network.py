"""A network as a body and a head, as required by methods that personalise the head."""

from torch import Tensor, nn

from feddwa.data.inputs import Shape

__all__ = ["Network", "Shape"]


class Network(nn.Module):
    """A body from a sample to features, and a linear head."""

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *shape) -> (B, classes) logits, or (B, L, classes) if the body has features at every position."""
        logits: Tensor = self.head(self.body(x))
        return logits
