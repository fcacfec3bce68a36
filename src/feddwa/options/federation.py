"""Options of a federation over Flower, in addition to those of the run."""

from dataclasses import dataclass

from feddwa.errors import require


@dataclass(frozen=True)
class FederationOptions:
    """By default a round begins once any node is online, and waits ten minutes for replies."""

    classes: str | None = None
    """Names of all classes, separated by commas, if nodes have their own data and some lack classes."""
    samples: str | None = None
    """Shape of samples and targets, number of classes, if nodes have their own data; a run without it prints them."""
    clients_per_node: int = 100
    """Most clients per node with its own data; the server holds a row for each."""
    min_nodes: int = 1
    """Nodes that must be online before a round begins."""
    wait: float = 300.0
    """Seconds to wait for them; then the run ends, and can be resumed."""
    deadline: float = 600.0
    """Seconds that a round waits for replies."""
    min_clients: int = 1
    """Updates that a round needs; with fewer, the models stay unchanged."""
    max_megabytes: float = 1024.0
    """Largest accepted reply from a node, in MB."""
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
        """`classes` as a tuple; empty if not given."""
        return tuple(name.strip() for name in (self.classes or "").split(",") if name.strip())
