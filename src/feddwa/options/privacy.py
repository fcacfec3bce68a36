"""Options of privacy: differential privacy, and the data that clients disclose besides their updates."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from feddwa import params
from feddwa.errors import InputError, require
from feddwa.params import Option


@dataclass(frozen=True)
class Privacy:
    """Settings of --dp, KEY=VALUE,... By default nothing is private."""

    epsilon: float = math.inf
    """Privacy budget of the whole run; inf = no noise."""
    delta: float = 1e-5
    """Probability that the budget is exceeded."""
    clip: float = math.inf
    """C: largest Euclidean norm of an update (unit client, local) or of a sample's gradient (unit sample)."""
    unit: Literal["client", "local", "sample"] = "client"
    """What is protected: a client from who sees the server's models, from the server too, or each sample from all."""
    sampling: Literal["poisson", "fixed"] = "poisson"
    """Cohorts under unit=client: each client independently with probability `participation`, or a fixed number."""
    quantile: float = 0.0
    """Under unit=client C follows this quantile of the updates' norms, starting from `clip`; 0 = C is constant."""
    accountant: Literal["rdp", "pld"] = "rdp"
    """Renyi divergences, fast, or privacy loss distributions, tighter."""

    def __post_init__(self) -> None:
        require(self.epsilon > 0, "--dp epsilon", self.epsilon, "above 0")
        require(0 < self.delta < 1, "--dp delta", self.delta, "above 0 and below 1")
        require(self.clip > 0, "--dp clip", self.clip, "above 0")
        require(0 <= self.quantile < 1, "--dp quantile", self.quantile, "from 0 to below 1")
        bounded = math.isinf(self.epsilon) or math.isfinite(self.clip)
        require(bounded, "--dp clip", self.clip, "a finite number where epsilon is one")
        if self.unit != "client":
            for name, usual in (("sampling", "poisson"), ("quantile", 0.0)):
                value = getattr(self, name)
                require(value == usual, f"--dp {name}", value, f"left out under unit={self.unit}")
        adapted = not self.quantile or math.isfinite(self.clip)
        require(adapted, "--dp clip", self.clip, "a finite number, the first C, where quantile is given")
        if self.sampling == "fixed" and self.accountant == "pld":
            raise InputError(
                "--dp accountant=pld: takes Poisson cohorts alone; take sampling=poisson or accountant=rdp"
            )

    @property
    def active(self) -> bool:
        """Whether anything is clipped or noised."""
        return math.isfinite(self.epsilon) or math.isfinite(self.clip)

    @property
    def of_updates(self) -> bool:
        """Whether whole updates are private, rather than single gradients."""
        return self.active and self.unit != "sample"


PUBLIC = Privacy()


@dataclass(frozen=True)
class PrivacyOptions:
    """By default clients send everything that their method uses."""

    dp: Annotated[str, Option(metavar="KEY=VALUE,...")] = ""
    """Differential privacy: epsilon=8,delta=1e-5,clip=1,unit=client (or local, sample); docs/privacy.md."""
    disclose: Literal["all", "none"] = "all"
    """none: clients withhold label counts, class statistics and data sizes; methods that need them are refused."""

    @property
    def privacy(self) -> Privacy:
        """The settings of --dp."""
        return read(self.dp)

    def check_privacy(self, lr: object, defence: str, batchnorm: str, holdout: object) -> None:
        """Raise InputError unless --dp is valid and compatible with these other options of the run."""
        privacy = self.privacy
        if not privacy.active:
            return
        why = "reads the first client's data outside of the mechanism"
        require(lr != "auto", "--lr", lr, f"a number with --dp: the search {why}")
        if privacy.unit == "client" and defence:
            raise InputError(f"--dp unit=client: what one client changes is not known under --defence {defence}")
        if batchnorm == "mean":
            raise InputError("--dp: clipping is about models, not about the statistics that --batchnorm mean sends")
        if privacy.unit == "sample" and holdout:
            raise InputError(
                "--dp unit=sample: --holdout-clients tunes models on newcomers' data, which is not covered"
            )


@cache
def read(text: str) -> Privacy:
    """The settings in KEY=VALUE,..."""
    kinds, found = params.fields_of(Privacy), dict[str, object]()
    for entry in text.split(",") if text else []:
        key, equals, value = (part.strip() for part in entry.partition("="))
        require(bool(equals and key), "--dp", entry, "of the form KEY=VALUE")
        require(key in kinds, "--dp", key, f"one of {', '.join(kinds)}")
        require(key not in found, f"--dp {key}", text, "given once")
        found[key] = params.typed(f"--dp {key}", params.parse(value, kinds[key][0]), kinds[key][0])
    if text and "epsilon" not in found:
        raise InputError(f"--dp {text}: needs epsilon=..., the budget; inf = no noise")
    return Privacy(**found)  # type: ignore[arg-type]  # each is of its field's type
