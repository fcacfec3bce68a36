"""Options of evaluation: validation data, held-out clients, evaluated clients and rounds, early stopping."""

from dataclasses import dataclass
from typing import Annotated, Literal

from feddwa.errors import InputError, counted, require
from feddwa.params import Option


@dataclass(frozen=True)
class EvaluationOptions:
    """The rounds and data of evaluation, and early stopping."""

    validation: float = 0.0
    """Share of each client's training data held out to validate models: from 0 to below 1."""
    holdout_clients: Annotated[float, Option(metavar="SHARE")] = 0.0
    """Share of the clients held out of training and evaluated as newcomers at the end: from 0 to below 1."""
    eval_every: int = 1
    """Rounds between evaluations; the models are also evaluated before the first and after the last round."""
    eval_clients: int | None = None
    """Number of evaluated clients, the same ones in every round; at the end all are evaluated [all]."""
    eval: Literal["clients", "central", "central-mean"] = "clients"
    """central: also the global model on all clients' test data; central-mean: the clients' models on them, the mean."""
    early_stop: int | None = None
    """End the run after this number of evaluations in a row without improvement; needs --validation."""

    def check_evaluation(self) -> None:
        """Raise InputError unless the values are valid, separately and together."""
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
    """Number of held-out clients of `clients`; InputError if that is none or all."""
    count = int(share * clients + 0.5)
    if share and not 0 < count < clients:
        valid = f"take at most {1 - 1 / clients:.6g}" if count else f"take at least {1 / clients:.2g}"
        raise InputError(
            f"--holdout-clients {share:g}: would hold out {'all' if count else 'none'} of "
            f"{counted(clients, 'client')}; {valid if clients > 1 else 'leave it out'}"
        )
    return count
