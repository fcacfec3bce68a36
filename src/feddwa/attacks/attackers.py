"""The attackers of a run: drawn once from the seed, the same in every round."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from feddwa.attacks.base import Attack, Seen
from feddwa.data.federated import FederatedData
from feddwa.engine import Cohort, Message, Stack, keys
from feddwa.engine.rows import difference, put, take
from feddwa.plugins import label
from feddwa.updates import finite, origin

Shares = tuple[tuple[Attack, float], ...]  # attacks and their shares of all clients


@dataclass(frozen=True)
class Attackers:
    """The attackers of a federation of N clients; none by default. Each client has at most one attack."""

    seed: int
    clients: int  # N
    shares: Shares = ()

    @cached_property
    def kinds(self) -> Tensor:
        """(N,) int64: 0 = honest, else the number of the client's attack, from 1 on."""
        if not self.shares:
            return torch.zeros(self.clients, dtype=torch.int64)
        order = keys.permutations(keys.key(self.seed, "hostile").reshape(1), torch.tensor([self.clients]))[0]
        kinds, start = torch.zeros(self.clients, dtype=torch.int64), 0
        for number, (_, share) in enumerate(self.shares, 1):
            stop = start + round(share * self.clients)
            kinds[order[start:stop]] = number
            start = stop
        return kinds

    @property
    def honest(self) -> Tensor:
        """(h,) int64: the honest clients, in ascending order."""
        return (self.kinds == 0).nonzero().flatten()

    @cached_property
    def victim(self) -> Tensor:
        """(1,) the honest client targeted by an attack with a target; (0,) if no client is honest."""
        return self.honest[keys.sample(keys.key(self.seed, "victim"), len(self.honest), 1)]

    @property
    def poison(self) -> Callable[[FederatedData], FederatedData] | None:
        """The attackers' change of the data; None if there is none."""
        does = any(type(attack).poisoned is not Attack.poisoned for attack, _ in self.shares)
        return self._poisoned if does else None

    def _poisoned(self, data: FederatedData) -> FederatedData:
        for number, (attack, _) in enumerate(self.shares, 1):
            who = (self.kinds == number).nonzero().flatten()
            if len(who):
                data = attack.poisoned(data, who, keys.key(self.seed, "poison", who))
        return data

    def facts(self, names: Iterable[str]) -> dict[str, Any]:
        """For the summary: name of every attack -> its clients, and the victim; names: of the attacks in order."""
        who = ((self.kinds == number).nonzero().flatten() for number in range(1, len(self.shares) + 1))
        attackers = {label(name): own.tolist() for name, own in zip(names, who, strict=True)}
        aimed = {"victim": int(self.victim)} if any(attack.targets for attack, _ in self.shares) else {}
        return {"attackers": attackers, **aimed} if attackers else {}

    def sent(self, cohort: Cohort, download: Message, upload: Message, differences: Collection[str]) -> Message:
        """The uploads (m, ...) on arrival, from those that all clients would send if honest.

        download: (m, ...) their starting point; differences: parts that are differences of models.
        """
        kinds = self.kinds[cohort.ids]
        if not kinds.any():
            return upload
        honest = ((kinds == 0) & finite(upload, len(cohort))).nonzero().flatten()
        return {
            part: self._attacked(rows, origin(part, rows, download, differences), cohort, honest)
            for part, rows in upload.items()
        }

    def _attacked(self, rows: Stack, origins: Stack, cohort: Cohort, honest: Tensor) -> Stack:
        """One part of the uploads (m, *shape) with all real numbers of attackers replaced.

        origins: starting values from the server; honest: (k,) positions of honest clients in the cohort.
        """
        real: Stack = {name: value for name, value in rows.items() if value.is_floating_point()}
        start = {name: origins.get(name, torch.zeros_like(value)) for name, value in real.items()}
        updates, kinds = difference(real, start), self.kinds[cohort.ids]
        draws = keys.key(self.seed, "attack", cohort.round, cohort.ids)
        for number, (attack, _) in enumerate(self.shares, 1):
            who = (kinds == number).nonzero().flatten()
            if real and len(who) and type(attack).updates is not Attack.updates:
                others = honest if len(honest) else who
                mine, victim = take(start, who), torch.isin(cohort.ids[others], self.victim).nonzero().flatten()
                known = take(updates, others), take(start, others), victim
                made = attack.updates(Seen(mine, take(updates, who), *known, len(cohort), draws[who]))
                real = put(real, who, {name: (mine[name] + made[name]).to(own.dtype) for name, own in real.items()})
        return {**rows, **real}
