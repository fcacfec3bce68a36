"""Messages of a federation: replies of a round and nodes' descriptions with something changed, in this process.

The honest messages are those of a real federation. A changed reply goes through all that a server does with it, up to
the mixing: whatever it is, the other nodes' updates count, and what comes out is finite.
"""

import copy
import io
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Flower warns of futures of its own when it is loaded
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from feddwa.flower import coordinator, participation, replies
    from feddwa.flower.codec import Malformed
    from feddwa.flower.registry import NodeDescription, Registry
    from feddwa.flower.settings import FlowerConfig
    from tests.flower.grid import LocalGrid, blocks

from feddwa.engine import Cohort
from feddwa.engine.rows import tensors
from tests.fuzz.case import Case, Target, damaged, packed, unpacked

NODES = 3
VALUES = (0, 1, -1, 3, 2**31, 2**40, 10**12, 2**62, 2**63 - 1, -(2**63), 0.5, "", "x", "[]", "{}", "null",
          '["<f4", [9]]', '["<f4", [-1]]', True, [1], [2**62, 2**62], [-1], "\u2028", "[" * 2000)  # fmt: skip
FILLS = (0.0, 1.0, -1.0, 1e11, 1e30, 1e38, float("nan"), float("inf"), float("-inf"))
KINDS = ("<f4", "<f8", "<i8", "|b1", "<f2", ">f4", "|u1", "<U3")
SHAPES = ("same", "transposed", "one less", "one more", "flat", "axis", "none")


class Messages(Target):
    """A reply or a description of one of three nodes."""

    name = "messages"

    def prepare(self, folder: Path) -> None:
        """Record what the nodes of a real federation say, and what the server knew then."""
        super().prepare(folder)
        self.given: list[tuple[Any, ...]] = []  # of `read_reply`, by node: reply, what was asked, what is expected
        self.described: list[tuple[Any, ...]] = []  # of `NodeDescription.of`, by node: description, terms of the run
        config = FlowerConfig(dataset="digits", clients=6, rounds=1, min_nodes=NODES, model="linear").resolved()
        self.server = coordinator.Coordinator(LocalGrid(config, blocks(NODES, "nodes")), config, False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coordinator, "read_reply", _recording(self.given, replies.read_reply))
            patch.setattr(participation.NodeDescription, "of", _recording(self.described, NodeDescription.of))
            self.server.start()
            self.before = copy.deepcopy(self.server.state)
            self.server.step()

    def draw(self, rng: random.Random) -> Case:
        """One to three changes to the records of a message."""
        kind = rng.choice(["reply", "reply", "description"])
        honest = (self.given if kind == "reply" else self.described)[0][0]
        return {
            "kind": kind,
            "node": rng.randrange(NODES),
            "changes": [_change(rng, honest) for _ in range(rng.choice([1, 1, 2, 3]))],
        }

    def check(self, case: Case) -> str:
        """One reason without a line's end; the others are not concerned."""
        return self._described(case) if case["kind"] == "description" else self._replied(case)

    def _replied(self, case: Case) -> str:
        asked = dict(enumerate(assignment for _, assignment, _ in self.given))
        bad, expected, clients = case["node"], self.given[0][2], self.server.registry.clients
        answers = {node: given[0] for node, given in enumerate(self.given)}
        answers[bad] = _changed(answers[bad], case["changes"])
        missing: dict[int, str] = {}
        read = {node: replies.read_reply(answer, asked[node], expected) for node, answer in answers.items()}
        found = replies.collect_replies(asked, read, expected.scores, clients, missing)
        others = {row for node, own in asked.items() if node != bad for row in own.trains}
        assert others <= set(found.ids.tolist()), (missing, "others' updates do not count")
        assert set(missing) <= set(asked[bad].asked), missing
        for reason in missing.values():
            assert reason.isprintable(), reason
            assert len(reason) < 500, reason
        assert all(value.isfinite().all() for _, value in tensors(found.upload) if value.is_floating_point())
        assert bool((found.flops.isfinite() & (found.flops >= 0)).all())
        cohort = Cohort(found.ids, self.server.registry.train[found.ids], 1, clients)
        state, _ = self.server.server_side.advance(copy.deepcopy(self.before), cohort, found.upload)
        assert all(value.isfinite().all() for value in _leaves(state) if value.is_floating_point()), "a mixed model"
        return "; ".join(dict.fromkeys(missing.values()))

    def _described(self, case: Case) -> str:
        (first, terms), (second, _), *_ = self.described
        registry = Registry()
        registry.admit("first", NodeDescription.of(first, terms), terms.clients)
        before = registry.tree()
        try:
            registry.admit("bad", NodeDescription.of(_changed(second, case["changes"]), terms), terms.clients)
        except Malformed as error:
            refusal = str(error)
        else:
            assert registry.clients == terms.clients
            return ""
        assert refusal.isprintable(), refusal
        assert registry.rows.keys() == {"first"}, "a refused node holds rows"
        assert all(torch.equal(value, before[name]) for name, value in registry.tree().items())
        return refusal


def _recording(calls: list[tuple[Any, ...]], real: Any) -> Any:
    """The function, which writes down a copy of what it is called with."""

    def function(*given: Any) -> Any:
        calls.append(copy.deepcopy(given))
        return real(*given)

    return function


def _leaves(tree: Any) -> Iterator[torch.Tensor]:
    for value in tree.values():
        yield from [value] if isinstance(value, torch.Tensor) else _leaves(value)


def _change(rng: random.Random, content: RecordDict) -> list[Any]:
    """One thing that may be wrong, as JSON has it."""
    record = rng.choice([*content])
    names = [*content[record]]
    if rng.random() < 0.1 or not names:
        return [rng.choice(["drop", "empty", "swap"]), record]
    name = rng.choice(names)
    if rng.random() < 0.15:
        return [rng.choice(["remove", "rename"]), record, name]
    if isinstance(content[record], ConfigRecord):
        return ["value", record, name, rng.choice(VALUES)]
    if rng.random() < 0.4:
        return ["bytes", record, name, packed(damaged(rng, content[record][name].data))]
    return ["array", record, name, rng.choice(KINDS), rng.choice(SHAPES), rng.choice([None, *FILLS])]


def _changed(honest: RecordDict, changes: list[list[Any]]) -> RecordDict:
    """The records of a message with something changed in them."""
    records = {name: dict(record) for name, record in honest.items()}
    plain = {name for name, record in honest.items() if isinstance(record, ConfigRecord)}
    for kind, record, *rest in changes:
        own = records.get(record)
        if own is None:
            continue
        if kind == "drop":
            del records[record]
        elif kind == "empty":
            own.clear()
        elif kind == "swap":
            plain ^= {record}
            own.clear()
        elif kind == "remove":
            own.pop(rest[0], None)
        elif rest[0] in own:
            value = own.pop(rest[0])
            own |= {f"{rest[0]}x": value} if kind == "rename" else {rest[0]: _other(kind, value, *rest[1:])}
    return RecordDict({n: ConfigRecord(own) if n in plain else ArrayRecord(own) for n, own in records.items()})  # type: ignore[arg-type]


def _other(kind: str, value: Any, *rest: Any) -> Any:
    if kind == "value":
        return rest[0]
    if kind == "bytes":
        return Array("float32", (2,), "numpy.ndarray", unpacked(rest[0]))
    dtype, shape, fill = rest
    try:
        found = np.load(io.BytesIO(value.data))
    except Exception:  # changed before: NumPy parses the header as a Python literal, which raises many types
        return value
    found = {
        "same": found, "transposed": found.T, "one less": found[:-1] if found.ndim else found,
        "one more": np.concatenate([found, found[:1]]) if found.ndim else found, "flat": found.reshape(-1),
        "axis": found[None], "none": found[:0] if found.ndim else found,
    }[shape]  # fmt: skip
    with np.errstate(all="ignore"):
        values = (found if fill is None else np.full(found.shape, fill)).astype(found.dtype if fill is None else dtype)
    file = io.BytesIO()
    np.save(file, values)
    return Array("float32", (2,), "numpy.ndarray", file.getvalue())
