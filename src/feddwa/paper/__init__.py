"""The paper's tables and figures: what they consist of, what they gave here, and how both are written down."""

from feddwa.paper.cells import Progress
from feddwa.paper.reproduce import reproduce
from feddwa.paper.specs import experiments

__all__ = ["Progress", "experiments", "reproduce"]
