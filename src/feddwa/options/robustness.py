"""Options of robustness: clients that are sick, slow or hostile, and what the server does about them."""

from dataclasses import dataclass
from typing import Annotated

from feddwa import params
from feddwa.errors import InputError, require
from feddwa.params import Option
from feddwa.plugins import ATTACKS, label, located

FAULTS = ("dropout", "straggler", "nan", "shape")  # the fields of feddwa.faults.Faults


@dataclass(frozen=True)
class RobustnessOptions:
    """By default all clients are well and honest."""

    fault: Annotated[str, Option(metavar="NAME=SHARE,...")] = ""
    """Clients that are sick or slow: dropout, straggler, nan, shape."""
    attack: Annotated[str, Option(metavar="NAME=SHARE,...")] = ""
    """Clients that are hostile (`feddwa list attacks`); scores are then those of the honest ones."""

    @property
    def faults(self) -> dict[str, float]:
        """Name of each fault -> its share."""
        return params.shares("--fault", self.fault, _check_fault)

    @property
    def attacks(self) -> dict[str, float]:
        """Name or reference of each attack -> its share of the clients."""
        return params.shares("--attack", self.attack, ATTACKS.check)

    def located_attack(self) -> str:
        """`attack` with references to files that lead there from any folder."""
        return ",".join(f"{located(name)}={share}" for name, share in self.attacks.items())

    def check_robustness(self, clients: int | None, participation: float) -> None:
        """Raise InputError unless names are known, shares hit somebody, and somebody is honest; clients: N if known."""
        shares = self.attacks
        require(sum(shares.values()) < 1, "--attack", self.attack, "of shares that are together below 1")
        for name, share in shares.items() if clients else ():
            valid = f"0, or above {0.5 / clients:.3g}: it hits nobody of {clients}"
            require(share == 0 or round(share * clients) > 0, f"--attack {label(name)}", share, valid)
        if clients and sum(round(share * clients) for share in shares.values()) >= clients:
            raise InputError(
                f"--attack {self.attack}: nobody of {clients} clients would be honest; take smaller shares"
            )
        late, cohort = self.faults.get("straggler", 0.0), int(participation * (clients or 0) + 1e-9)
        if cohort:  # the other faults are chances that each client has by itself
            valid = f"0, or above {0.5 / cohort:.3g}: it hits nobody of {cohort}"
            require(late == 0 or round(late * cohort) > 0, "--fault straggler", late, valid)


def _check_fault(name: str) -> None:
    if name not in FAULTS:
        raise InputError(f"--fault {name}: no such fault; valid: {', '.join(FAULTS)}, as NAME=SHARE")
