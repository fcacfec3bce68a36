"""Options of a federation over Flower, beside those of the run itself."""

from dataclasses import dataclass

from feddwa.errors import require


@dataclass(frozen=True)
class FederationOptions:
    """By default a round begins with any node that is there, and waits ten minutes for replies."""

    classes: str | None = None
    """Names of all classes, separated by commas, where nodes have their own data and not every node has every class."""
    samples: str | None = None
    """Shape of samples and targets, number of classes, where nodes have their own data; a run without it says it."""
    clients_per_node: int = 100
    """Most clients that a node may bring which has its own data; the server holds a row for each."""
    min_nodes: int = 1
    """Nodes that must be online before a round begins."""
    wait: float = 300.0
    """Seconds to wait for them; then the run ends, and can be resumed."""
    deadline: float = 600.0
    """Seconds that a round waits for replies."""
    min_clients: int = 1
    """Updates that a round needs; with fewer, the models stay as they are."""
    max_megabytes: float = 1024.0
    """Largest reply that is accepted from a node, in MB."""
    evaluate_absent: bool = True
    """Whether clients that do not train in a round evaluate their personalised models."""

    def check_federation(self) -> None:
        """Raise InputError unless every number is within its bounds."""
        for name in ("min_nodes", "min_clients", "clients_per_node"):
            require(getattr(self, name) >= 1, f"--{name.replace('_', '-')}", getattr(self, name), "at least 1")
        for name in ("wait", "deadline", "max_megabytes"):
            value = getattr(self, name)
            require(0 < value < float("inf"), f"--{name.replace('_', '-')}", value, "a finite number above 0")

    @property
    def class_names(self) -> tuple[str, ...]:
        """`classes` as a tuple; empty where it is not given."""
        return tuple(name.strip() for name in (self.classes or "").split(",") if name.strip())
