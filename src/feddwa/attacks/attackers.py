"""Who attacks in a run: drawn once from the seed, the same in every round."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from feddwa.attacks.base import Attack, Seen
from feddwa.data.federated import FederatedData
from feddwa.engine import Cohort, Message, Stack, keys
from feddwa.engine.rows import difference, put, take
from feddwa.plugins import label
from feddwa.updates import finite, origin

Shares = tuple[tuple[Attack, float], ...]  # attacks, and the share of all clients that each has


@dataclass(frozen=True)
class Attackers:
    """The attackers of a federation of N clients; nobody by default. Each client is at most one."""

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
        """(h,) int64: who does not attack, in ascending order."""
        return (self.kinds == 0).nonzero().flatten()

    @property
    def poison(self) -> Callable[[FederatedData], FederatedData] | None:
        """What attackers do to the data; None where they do nothing."""
        does = any(type(attack).poisoned is not Attack.poisoned for attack, _ in self.shares)
        return self._poisoned if does else None

    def _poisoned(self, data: FederatedData) -> FederatedData:
        for number, (attack, _) in enumerate(self.shares, 1):
            who = (self.kinds == number).nonzero().flatten()
            if len(who):
                data = attack.poisoned(data, who, keys.key(self.seed, "poison", who))
        return data

    def by_name(self, names: Iterable[str]) -> dict[str, list[int]]:
        """Name of every attack -> its clients; names: of the attacks in order."""
        who = ((self.kinds == number).nonzero().flatten() for number in range(1, len(self.shares) + 1))
        return {label(name): own.tolist() for name, own in zip(names, who, strict=True)}

    def sent(self, cohort: Cohort, download: Message, upload: Message, differences: Collection[str]) -> Message:
        """The uploads (m, ...) as they arrive, from what everybody would send who is honest.

        download: (m, ...) what they started from; differences: parts that are no models but differences of some.
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

        origins: where values began that came from the server; honest: (k,) places of honest clients in the cohort.
        """
        real: Stack = {name: value for name, value in rows.items() if value.is_floating_point()}
        start = {name: origins.get(name, torch.zeros_like(value)) for name, value in real.items()}
        updates, kinds = difference(real, start), self.kinds[cohort.ids]
        draws = keys.key(self.seed, "attack", cohort.round, cohort.ids)
        for number, (attack, _) in enumerate(self.shares, 1):
            who = (kinds == number).nonzero().flatten()
            if real and len(who) and type(attack).updates is not Attack.updates:
                begun, own = take(start, who), take(updates, who)
                known = take(updates, honest) if len(honest) else own
                made = attack.updates(Seen(begun, own, known, len(cohort), draws[who]))
                real = put(real, who, {name: (begun[name] + made[name]).to(own[name].dtype) for name in own})
        return {**rows, **real}
