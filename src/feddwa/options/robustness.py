"""Options of robustness: failing, slow or hostile clients, and the server's defences."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Self

from feddwa import params
from feddwa.errors import InputError, require
from feddwa.params import Option
from feddwa.plugins import ATTACKS, DEFENCES, label, located

NO_DEFENCE = "none"
FAULTS = ("dropout", "straggler", "nan", "shape")  # the fields of feddwa.faults.Faults


@dataclass(frozen=True)
class RobustnessOptions:
    """By default all clients work and are honest."""

    fault: Annotated[str, Option(metavar="NAME=SHARE,...")] = ""
    """Failing or slow clients: dropout, straggler, nan, shape."""
    attack: Annotated[str, Option(metavar="NAME=SHARE,...")] = ""
    """Hostile clients (`feddwa list attacks`); scores then cover honest clients only."""
    defence: Annotated[str | None, Option(metavar="NAME,...")] = None
    """The server's defences (`feddwa list defences`), or none; default: the algorithm's own."""

    @property
    def faults(self) -> dict[str, float]:
        """Name of each fault -> its share."""
        return params.shares("--fault", self.fault, _check_fault)

    @property
    def attacks(self) -> dict[str, float]:
        """Name or reference of each attack -> its share of the clients."""
        return params.shares("--attack", self.attack, ATTACKS.check)

    @property
    def defences(self) -> tuple[str, ...]:
        """Name or reference of each defence, in order; an algorithm's own once resolved."""
        given = self.defence or NO_DEFENCE
        return () if given == NO_DEFENCE else tuple(name.strip() for name in given.split(","))

    def located_robustness(self) -> dict[str, str | None]:
        """`attack` and `defence` with absolute paths in references to files."""
        attacks = [f"{located(name)}={share}" for name, share in self.attacks.items()]
        defence = None if self.defence is None else ",".join(map(located, self.defences)) or NO_DEFENCE
        return {"attack": ",".join(attacks), "defence": defence}

    def defended(self, own: str) -> Self:
        """The options with the algorithm's own defence if none is given."""
        config = dataclasses.replace(self, defence=own) if self.defence is None else self
        config._check_defences()
        return config

    def _check_defences(self) -> None:
        for name in self.defences:
            DEFENCES.check(name)
            require(self.defences.count(name) == 1, f"--defence {label(name)}", self.defence, "given once")

    def check_robustness(self, clients: int | None, participation: float) -> None:
        """Raise InputError unless names are known, every share affects some client, and some client is honest; clients:
        N if known.
        """
        shares = self.attacks
        require(sum(shares.values()) < 1, "--attack", self.attack, "of shares that are together below 1")
        for name, share in shares.items():
            _check_hits(f"--attack {label(name)}", share, clients)
        if clients and sum(round(share * clients) for share in shares.values()) >= clients:
            raise InputError(
                f"--attack {self.attack}: nobody of {clients} clients would be honest; take smaller shares"
            )
        self._check_defences()
        late = self.faults.get("straggler", 0.0)  # the other faults are independent probabilities per client
        _check_hits("--fault straggler", late, clients and int(participation * clients + 1e-9))


def _check_hits(option: str, share: float, clients: int | None) -> None:
    """Raise if a share, rounded to a number of clients, affects none."""
    if clients:
        valid = f"0, or above {0.5 / clients:.3g}: it hits nobody of {clients}"
        require(share == 0 or round(share * clients) > 0, option, share, valid)


def _check_fault(name: str) -> None:
    if name not in FAULTS:
        raise InputError(f"--fault {name}: no such fault; valid: {', '.join(FAULTS)}, as NAME=SHARE")
