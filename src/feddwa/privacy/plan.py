"""The privacy of one run: how much noise its budget needs, and what has been spent of that after some rounds."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddwa.engine import Engine, keys
from feddwa.engine.private import SamplePrivacy
from feddwa.options.privacy import Privacy
from feddwa.privacy import accountant
from feddwa.privacy.accountant import Releases
from feddwa.privacy.coverage import DryRun
from feddwa.privacy.mechanism import NOTHING, Mechanism


@dataclass(frozen=True)
class Federated:
    """What accounting needs to know of a run."""

    clients: int  # N
    participation: float
    rounds: int  # T
    seed: int
    batch_size: int
    sizes: dict[str, Tensor]  # split -> (N,) samples of each client

    @property
    def cohort_size(self) -> int:
        """m of fixed cohorts."""
        return int(self.participation * self.clients + 1e-9)

    def drawn(self, round: int, poisson: bool) -> Tensor:
        """(m,) the clients of a round, in ascending order."""
        if self.cohort_size == self.clients:
            return torch.arange(self.clients)
        key = keys.key(self.seed, "cohort", round)
        if not poisson:
            return keys.sample(key, self.clients, self.cohort_size)
        return (keys.uniform64(key.reshape(1), self.clients)[0] < self.participation).nonzero().flatten()


def begin_privately(privacy: Privacy, engine: Engine) -> None:
    """Let local training be private, for now with no noise, if samples are to be private."""
    if privacy.active and privacy.unit == "sample":
        accountless = SamplePrivacy(privacy.clip, (0.0,) * engine.data.clients)
        engine.settings = dataclasses.replace(engine.settings, private=accountless)


def planned(privacy: Privacy, dry: DryRun, participation: float, rounds: int) -> "Plan":
    """The plan of a run of so many rounds; raises InputError where the method is not covered.

    If samples are private, the engine trains with the plan's noise from now on.
    """
    dry.check(privacy)
    engine = dry.engine
    sizes = {split: engine.data.splits[split].sizes for split in dry.steps}
    width = engine.settings.batch_size
    federated = Federated(engine.data.clients, participation, rounds, engine.seed, width, sizes)
    plan = Plan(privacy, federated, dry.steps, any(dry.upload.values()))
    engine.settings = dataclasses.replace(engine.settings, private=plan.samples())
    return plan


@dataclass(frozen=True)
class Plan:
    """The privacy of a run."""

    privacy: Privacy
    run: Federated
    steps: dict[str, Tensor]  # split -> (N,) private steps that a client makes in a round that it takes part in
    sends: bool  # whether clients send anything

    @property
    def poisson(self) -> bool:
        """Whether cohorts are drawn client by client."""
        privacy = self.privacy
        return privacy.active and privacy.unit == "client" and privacy.sampling == "poisson"

    def mechanism(self) -> Mechanism:
        """What is done with updates."""
        if not (self.privacy.of_updates and self.sends):
            return NOTHING
        expected = self.run.participation * self.run.clients if self.poisson else float(self.run.cohort_size)
        made = Mechanism(self.privacy, self._multiplier(self._of_updates(self.run.rounds)), expected, self.run.seed)
        made.check()
        return made

    def samples(self) -> SamplePrivacy | None:
        """What is done in local training."""
        if not self.privacy.active or self.privacy.unit != "sample":
            return None
        multipliers = tuple(max(map(self._multiplier, own), default=0.0) for own in self._of_samples(self.run.rounds))
        return SamplePrivacy(
            self.privacy.clip, multipliers, {split: tuple(own.tolist()) for split, own in self.steps.items()}
        )

    def spent(self, rounds: int) -> dict[str, Any]:
        """What a run that ends after so many rounds says of its privacy."""
        privacy, told = (
            self.privacy,
            {key: value for key, value in dataclasses.asdict(self.privacy).items() if key != "epsilon"},
        )
        if privacy.unit == "sample":
            samples = self.samples()
            assert samples is not None
            pairs = zip(samples.multipliers, self._of_samples(rounds), strict=True)
            each = [max((self._epsilon(z, own) for own in splits), default=0.0) for z, splits in pairs]
            told |= {"noise_multipliers": list(samples.multipliers), "epsilons": [_number(value) for value in each]}
            spent = max(each)
        else:
            made = self.mechanism()
            spent = self._epsilon(made.multiplier, self._of_updates(rounds))
            told |= {"noise_multiplier": made.multiplier, "sensitivity": made.sensitivity}
        used = {"clip": _number(privacy.clip), "budget": _number(privacy.epsilon), "epsilon": _number(spent)}
        return {**told, **used}

    def _of_updates(self, rounds: int) -> Releases:
        if not self.sends:
            return Releases(1.0, 0)
        if self.privacy.unit == "local":  # as if a client took part in every round
            return Releases(1.0, rounds)
        if self.poisson:
            return Releases(1.0 if self.run.cohort_size == self.run.clients else self.run.participation, rounds)
        share = self.run.cohort_size / self.run.clients
        return Releases(share, rounds, (self.run.cohort_size, self.run.clients))

    def _of_samples(self, rounds: int) -> list[list[Releases]]:
        """Of every client, for each split of its data: no sample is in two of them."""
        taken = torch.zeros(self.run.clients, dtype=torch.int64)
        for round in range(1, rounds + 1):
            taken[self.run.drawn(round, self.poisson)] += 1
        found: list[list[Releases]] = [[] for _ in range(self.run.clients)]
        for split, steps in self.steps.items():
            shares = (self.run.batch_size / self.run.sizes[split].double()).clamp(max=1.0)
            for own, share, count in zip(found, shares.tolist(), (taken * steps).tolist(), strict=True):
                own.append(Releases(share, count))
        return found

    def _multiplier(self, releases: Releases) -> float:
        return accountant.multiplier(self.privacy.epsilon, releases, self.privacy.delta, self.privacy.accountant)

    def _epsilon(self, multiplier: float, releases: Releases) -> float:
        return accountant.epsilon(multiplier, releases, self.privacy.delta, self.privacy.accountant)


def _number(value: float) -> float | None:
    """A number that JSON has; None: infinity."""
    return round(value, 6) if math.isfinite(value) else None
