"""Options of evaluation: validation data, held-out clients, which clients and rounds, early stopping."""

from dataclasses import dataclass
from typing import Annotated, Literal

from feddwa.errors import InputError, counted, require
from feddwa.params import Option


@dataclass(frozen=True)
class EvaluationOptions:
    """When models are evaluated, on what besides the clients' test data, and what follows from it."""

    validation: float = 0.0
    """Share of each client's training data that nobody trains on, to validate models with: from 0 to below 1."""
    holdout_clients: Annotated[float, Option(metavar="SHARE")] = 0.0
    """Share of the clients that nobody trains with; at the end they are served as newcomers: from 0 to below 1."""
    eval_every: int = 1
    """Evaluate the models after every so many rounds, before the first and after the last one."""
    eval_clients: int | None = None
    """Evaluate so many clients, the same ones in every round, and all of them at the end [all]."""
    eval: Literal["clients", "central", "central-mean"] = "clients"
    """central: the global model on all clients' test data, too; central-mean: each client's model on them, the mean."""
    early_stop: int | None = None
    """End the run when this many evaluations in a row have not improved on the best one; needs --validation."""

    def check_evaluation(self) -> None:
        """Raise InputError unless the values are valid, by themselves and together."""
        require(0 <= self.validation < 1, "--validation", self.validation, "a share, from 0 to below 1")
        share = self.holdout_clients
        require(0 <= share < 1, "--holdout-clients", share, "a share, from 0 to below 1")
        require(self.eval_every >= 1, "--eval-every", self.eval_every, "at least 1 round")
        require(self.eval_clients is None or self.eval_clients >= 1, "--eval-clients", self.eval_clients, "at least 1")
        if self.early_stop is not None:
            require(self.early_stop >= 1, "--early-stop", self.early_stop, "at least 1 evaluation")
            if not self.validation:
                raise InputError("--early-stop: stops on validation data alone; give --validation a share, such as 0.1")


def held_out(share: float, clients: int) -> int:
    """How many of so many clients are held out by --holdout-clients; InputError where it is nobody, or everybody."""
    count = int(share * clients + 0.5)
    if share and not 0 < count < clients:
        valid = f"take at most {1 - 1 / clients:.6g}" if count else f"take at least {1 / clients:.2g}"
        raise InputError(
            f"--holdout-clients {share:g}: would hold out {'all' if count else 'none'} of "
            f"{counted(clients, 'client')}; {valid if clients > 1 else 'leave it out'}"
        )
    return count
