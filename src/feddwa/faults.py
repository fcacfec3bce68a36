"""Sick, slow and hostile clients for the simulator (`--fault dropout=0.2,nan=0.05,straggler=0.1`).

Each is a share. Who is hit is drawn from the run's seed: anew in every round for accidents, once and for all for
attackers, of which each client is at most one.

    dropout     does not take part in the round: it neither trains nor answers
    straggler   answers too late: a client needs (training samples) / (speed) of simulated time, its speed being drawn
                from a log-normal law every round; the deadline is when the fastest 1 - straggler have answered
    nan         answers with NaN
    shape       answers with a tensor of another shape
    sign-flip   attacker: goes as far as it was led, the other way
    scaled      attacker: goes ten times as far
    random      attacker: sends noise of the size of its model

What was absent keeps its memory and its personalised model and may be drawn again. Who was late has trained: its own
memory has moved on, the server has not received it. Whose update is refused stands where it stood before the round.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from feddwa import params
from feddwa.engine import Cohort, Message, Stack, keys
from feddwa.engine.rows import put, take
from feddwa.errors import InputError, require
from feddwa.updates import Signature

ATTACKS = ("sign_flip", "scaled", "random")
SCALE = 10.0  # of a scaled update
SPREAD = 0.5  # of the logarithm of a client's speed


@dataclass(frozen=True)
class Faults:
    """Shares of clients, from 0 to 1. Nothing by default."""

    dropout: float = 0.0
    straggler: float = 0.0
    nan: float = 0.0
    shape: float = 0.0
    sign_flip: float = 0.0
    scaled: float = 0.0
    random: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Faults":
        """From "dropout=0.2,nan=0.05"."""
        known, given = {field.name.replace("_", "-"): field.name for field in fields(cls)}, {}
        for entry in text.split(",") if text else []:
            name, _, value = (part.strip() for part in entry.partition("="))
            if name not in known:
                raise InputError(f"--fault {entry.strip()}: no such fault; valid: {', '.join(known)}, as NAME=SHARE")
            share = params.typed(f"--fault {name}", params.parse(value, float), float)
            require(0 <= share <= 1, f"--fault {name}", share, "from 0 to 1")
            require(known[name] not in given, f"--fault {name}", text, "given once")
            given[known[name]] = share
        faults = cls(**given)
        hostile = sum(getattr(faults, attack) for attack in ATTACKS)
        require(hostile <= 1 + 1e-9, "--fault", text, "of attackers that are together at most 1")
        return faults

    def check_anybody(self, clients: int, cohort: int) -> None:
        """Raise where a share is too small to hit anybody of N clients, or of the m of a round.

        Attackers and stragglers are counts, rounded; the other faults are chances that each client has by itself.
        """
        for name, count in (*((attack, clients) for attack in ATTACKS), ("straggler", cohort)):
            share, valid = getattr(self, name), f"0, or above {0.5 / count:.3g}: it hits nobody of {count}"
            require(share == 0 or round(share * count) > 0, f"--fault {name.replace('_', '-')}", share, valid)

    def absent(self, seed: int, cohort: Cohort) -> Tensor:
        """(m,) bool: who drops out of a round."""
        if not self.dropout:
            return _nobody(cohort)
        return _draw(seed, "dropout", cohort) < self.dropout

    def late(self, seed: int, cohort: Cohort) -> Tensor:
        """(m,) bool: who misses the deadline."""
        if not self.straggler:
            return _nobody(cohort)
        times = cohort.sizes / torch.exp(SPREAD * _normal(keys.key(seed, "speed", cohort.round, cohort.ids), 1)[:, 0])
        return times.argsort().argsort() >= len(cohort) - round(self.straggler * len(cohort))

    def signatures(self, seed: int, cohort: Cohort, honest: Signature) -> list[Signature]:
        """The signature of every client's message as it arrives."""
        if not self.shape:
            return [honest] * len(cohort)
        other = {name: ((*shape, 1), dtype) for name, (shape, dtype) in honest.items()}
        return [other if wrong else honest for wrong in (_draw(seed, "shape", cohort) < self.shape).tolist()]

    def sent(self, seed: int, cohort: Cohort, clients: int, download: Message, upload: Message) -> Message:
        """The uploads as they arrive, from what honest and healthy clients would send."""
        if self == HEALTHY:
            return upload
        kind = self.hostile(seed, clients)[cohort.ids]
        for number, attack in enumerate((_turned, _scaled, _noise), 1):
            upload = _replaced(
                upload, download, kind == number, attack, keys.key(seed, "noise", cohort.round, cohort.ids)
            )
        return _replaced(upload, download, _draw(seed, "nan", cohort) < self.nan, _nan, cohort.ids)

    def hostile(self, seed: int, clients: int) -> Tensor:
        """(N,) int64: 0 = honest, else the number of the attack, the same in every round."""
        order = keys.permutations(keys.key(seed, "hostile").reshape(1), torch.tensor([clients]))[0]
        kind, start = torch.zeros(clients, dtype=torch.int64), 0
        for number, attack in enumerate(ATTACKS, 1):
            stop = start + round(getattr(self, attack) * clients)
            kind[order[start:stop]] = number
            start = stop
        return kind


HEALTHY = Faults()


def _nobody(cohort: Cohort) -> Tensor:
    """(m,) bool: none of a cohort. Draws are hundreds of small operations, which a healthy federation does without."""
    return torch.zeros(len(cohort), dtype=torch.bool)


def _draw(seed: int, purpose: str, cohort: Cohort) -> Tensor:
    """(m,) from 0 to below 1, of every client by itself."""
    return _uniform(keys.key(seed, f"fault/{purpose}", cohort.round, cohort.ids), 1)[:, 0]


def _uniform(key: Tensor, count: int) -> Tensor:
    """(m, count) from 0 to below 1 in float64."""
    return ((keys.bits(key, count) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def _normal(key: Tensor, count: int) -> Tensor:
    """(m, count) standard normal (Box and Muller)."""
    radius, angle = _uniform(key, 2 * count).chunk(2, dim=1)
    return (-2 * torch.log1p(-radius)).sqrt() * torch.cos(2 * math.pi * angle)


Attack = Callable[[Tensor, Tensor, Tensor], Tensor]  # where the client started, what it would send, a key of its own


def _replaced(upload: Message, download: Message, who: Tensor, attack: Attack, key: Tensor) -> Message:
    """The uploads with those of `who` (m,) changed, all real numbers of them."""
    index = who.nonzero().flatten()
    if not len(index):
        return upload
    result: dict[str, Stack] = {}
    for part, rows in upload.items():
        start, own, new = take(download.get(part, download.get("model", {})), index), take(rows, index), {}
        for number, (name, value) in enumerate(own.items()):
            known = name in start and start[name].shape == value.shape  # a length may have its tensor's name
            begin = start[name] if known else torch.zeros_like(value)
            real = value.is_floating_point()
            new[name] = attack(begin, value, keys.fold(key[index], number)) if real else value
        result[part] = put(rows, index, new)
    return result


def _turned(start: Tensor, sent: Tensor, key: Tensor) -> Tensor:
    return 2 * start - sent


def _scaled(start: Tensor, sent: Tensor, key: Tensor) -> Tensor:
    return start + SCALE * (sent - start)


def _noise(start: Tensor, sent: Tensor, key: Tensor) -> Tensor:
    flat = sent.reshape(len(sent), -1)  # a part may be one number per client, (m,)
    size = flat.double().square().mean(1, keepdim=True).sqrt()
    return (size * _normal(key.to(flat.device), flat.shape[1])).to(sent.dtype).reshape(sent.shape)


def _nan(start: Tensor, sent: Tensor, key: Tensor) -> Tensor:
    return torch.full_like(sent, torch.nan)
