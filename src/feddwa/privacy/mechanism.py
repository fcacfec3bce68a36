"""The Gaussian mechanism on updates, a filter between the two sides: no algorithm knows of it.

    unit local    each client sends w_k + clip(v_k - w_k, C) + N(0, (2 z C)^2): other data move it by 2 C at most
    unit client   the server goes on with w + (sum_k clip(v_k - w, C) + N(0, (s z C)^2)) / m alone; m is the expected
                  number of participants, s = 1 with Poisson cohorts (a client or nobody), 2 with fixed ones (another)

Clipping is over all parts of an upload together. Weights are uniform: the server sees no data sizes. Whatever it makes
of what it is given is post-processing. Noise is keyed by the run's seed, so that a run can be repeated and resumed: who
knows the seed can take it off again, which suits a simulation.

Adaptive clipping (Andrew et al., NeurIPS 2021): the share b of updates with norm <= C, noised with standard deviation
sigma_b = m / 20 on their number, moves C <- C exp(-0.2 (b - quantile)). The noise of updates is larger for it, so that
both together cost what z alone would: z_update = (z^-2 - (2 sigma_b)^-2)^(-1/2).
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from feddwa.engine import Cohort, Message, ServerState, keys
from feddwa.engine.rows import norms, tensors
from feddwa.errors import InputError
from feddwa.options.privacy import PUBLIC, Privacy
from feddwa.updates import origin

STATE = "privacy"  # the part of a server state with the norm to which updates are clipped
RATE = 0.2  # of adaptive clipping
OF_BITS = 2**40  # number of its noise, beyond those of tensors
BITS = 20  # m over the standard deviation of the number of updates within the norm


@dataclass(frozen=True)
class Mechanism:
    """What --dp does with updates; by default nothing."""

    privacy: Privacy = PUBLIC
    multiplier: float = 0.0  # z
    expected: float = 1.0  # m
    seed: int = 0

    @property
    def local(self) -> bool:
        """Whether clients noise what they send."""
        return self.privacy.of_updates and self.privacy.unit == "local"

    @property
    def central(self) -> bool:
        """Whether the server noises the mean."""
        return self.privacy.of_updates and self.privacy.unit == "client"

    @property
    def sensitivity(self) -> float:
        """By how many C the sum of clipped updates moves with one client's data."""
        return 1.0 if self.central and self.privacy.sampling == "poisson" else 2.0

    def state(self) -> ServerState:
        """What the server keeps of the mechanism."""
        adapts = self.central and self.privacy.quantile
        return {STATE: {"clip": torch.tensor(self.privacy.clip, dtype=torch.float64)}} if adapts else {}

    def sent(self, cohort: Cohort, download: Message, upload: Message, differences: Collection[str]) -> Message:
        """The uploads (m, ...) as clients send them; unless unit=local, as they are."""
        if not self.local:
            return upload
        updates, start = _updates(upload, download, differences)
        factors = _factors(updates, self.privacy.clip)
        if self.multiplier:
            deviation = self.sensitivity * self.multiplier * self.privacy.clip
            rows = [keys.key(self.seed, "local noise", cohort.round, client) for client in cohort.ids.tolist()]
            noise = _stacked([_noise(key, updates, deviation) for key in rows])
            moved = {name: _times(factors, value) + noise[name] for name, value in updates.items()}
        else:
            moved = {name: _times(factors, value) for name, value in updates.items()}
        new = {name: (start[name] + value).to(start[name].dtype) for name, value in moved.items()}
        # an update that is as it was stays so, bit for bit
        flat = {name: torch.where(moved[name] == updates[name], value, new[name]) for name, value in tensors(upload)}
        return _parts(flat, upload)

    def mean(
        self, state: ServerState, round: int, download: Message, upload: Message, differences: Collection[str]
    ) -> tuple[Message, ServerState]:
        """The private mean of the uploads (m, ...) as the upload of one client (1, ...), and the new state of `state`.

        download: (1, ...), the one in which every upload began. m may be 0.
        """
        norm = float(state[STATE]["clip"]) if STATE in state else self.privacy.clip
        one = {
            part: {name: value.new_zeros(1, *value.shape[1:]) for name, value in rows.items()}
            for part, rows in upload.items()
        }
        start = _updates(one, download, differences)[1]
        updates = {name: value - start[name] for name, value in tensors(upload)}
        factors, key = _factors(updates, norm), keys.key(self.seed, "central noise", round)
        total = {
            name: _times(factors, value).sum(0, keepdim=True, dtype=torch.float64) for name, value in updates.items()
        }
        noise = _stacked([_noise(key, updates, self.sensitivity * self._of_updates * norm)])
        flat = {name: start[name] + (value + noise[name]) / self.expected for name, value in total.items()}
        return _parts({name: value.to(updates[name].dtype) for name, value in flat.items()}, upload), self._adapted(
            state, norm, factors, key
        )

    @property
    def _of_updates(self) -> float:
        """z of the updates, where some of z is for the share by which the norm is adapted."""
        if not self.privacy.quantile or not self.multiplier:
            return self.multiplier
        return 1 / math.sqrt(1 / self.multiplier**2 - (BITS / (2 * self.expected)) ** 2)

    def check(self) -> None:
        """Raise where adapting the norm would cost more than all of z."""
        if self.privacy.quantile and self.multiplier >= 2 * self.expected / BITS:
            why = f"the noise multiplier {self.multiplier:.3g} is too large for {self.expected:g} participants"
            raise InputError(
                f"--dp quantile: {why}, must be below a tenth of them; leave it out, or take a larger epsilon"
            )

    def _adapted(self, state: ServerState, norm: float, factors: Tensor, key: Tensor) -> ServerState:
        """The state with the norm of the next round; factors: (m,) of this round's updates, 1 = not clipped."""
        if STATE not in state:
            return state
        bits = float(((factors == 1).double() - 0.5).sum())  # around 0: one client moves the sum by a half
        if self.multiplier:
            deviation = self.sensitivity * self.expected / BITS
            bits += deviation * float(keys.normal(keys.fold(key, OF_BITS), torch.Size((1,))))
        new = norm * math.exp(-RATE * (bits / self.expected + 0.5 - self.privacy.quantile))
        return {**state, STATE: {"clip": torch.tensor(new, dtype=torch.float64)}}


NOTHING = Mechanism()


def without_state(state: ServerState) -> ServerState:
    """A server state as the algorithm knows it."""
    return {part: rows for part, rows in state.items() if part != STATE} if STATE in state else state


def uncovered(upload: Message, download: Message, differences: Collection[str]) -> str | None:
    """The first part of uploads that is no update of a model that was sent, so that its clipping is not known."""
    for part, rows in upload.items():
        known = part in differences or rows.keys() == origin(part, rows, download, differences).keys()
        if not known or not all(value.is_floating_point() for value in rows.values()):
            return part
    return None


def _updates(
    upload: Message, download: Message, differences: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """ "part/name" -> (m, *shape): the updates in a message, and where their values began."""
    zero = {part: {name: torch.zeros_like(value) for name, value in rows.items()} for part, rows in upload.items()}
    start = {part: {**rows, **origin(part, upload[part], download, differences)} for part, rows in zero.items()}
    flat = dict(tensors(start))
    return {name: value - flat[name] for name, value in tensors(upload)}, flat


def _parts(flat: dict[str, Tensor], like: Message) -> Message:
    return {part: {name: flat[f"{part}/{name}"] for name in rows} for part, rows in like.items()}


def _factors(updates: dict[str, Tensor], norm: float) -> Tensor:
    """(m,) float64: what takes each update, all its tensors together, to the norm; 1 where it is no longer."""
    if not any(map(len, updates.values())):
        return torch.ones(0, dtype=torch.float64)
    return (norm / norms(updates).clamp(min=1e-300)).clamp(max=1.0)


def _times(factors: Tensor, value: Tensor) -> Tensor:
    return value * factors.to(value).reshape(-1, *[1] * (value.ndim - 1))


def _noise(key: Tensor, updates: dict[str, Tensor], deviation: float) -> dict[str, Tensor]:
    """Normal noise in the shape of one update."""
    return {
        name: deviation * keys.normal(keys.fold(key, place).to(value.device), value.shape[1:])
        for place, (name, value) in enumerate(updates.items())
    }


def _stacked(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
