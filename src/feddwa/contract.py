"""The contract of an algorithm: the return values of its methods that every backend relies on.

    setup              server state, memory    memory (N, ...); the part "buffers" is added to it
    download, deliver  message                 (m, ...)
    client             upload, memory          (m, ...); memory with the parts, names, shapes and types of setup
    server             server state, info      parts and names of setup; info "weights", if reported, (m, m)
    personal           models, memory          name -> (m, *shape) of every trainable parameter; memory with "buffers"
    trained            models                  likewise

States and messages are part -> name -> tensor. Only the first round is checked, in which violations usually occur;
later rounds have no overhead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torch import Tensor

from feddwa.algorithms import Algorithm, Info, Problem
from feddwa.batchnorm import KEPT, STATISTICS
from feddwa.engine import Cohort, Memory, Message, Parts, ServerState, Stack, Trainer
from feddwa.engine.rows import described
from feddwa.engine.steps import PREFIX
from feddwa.errors import InputError

Shapes = Mapping[str, tuple[int, ...]]  # name -> (*shape) of the trainable parameters
OURS = ("buffers", KEPT, STATISTICS)  # parts reserved for the framework
STRUCTURE = "part -> name -> tensor"
HINT = "return the memory that the trainer returned, with your own parts changed: {**memory, ...}"


@dataclass(frozen=True)
class Checked(Algorithm):
    """An algorithm for `clients` rows whose return values are checked."""

    algorithm: Algorithm
    clients: int
    model: Shapes = field(default_factory=dict)  # parameters of the clients' models

    def setup(self, problem: Problem) -> tuple[ServerState, Memory]:
        """See Algorithm."""
        server, memory = self._pair("setup", self.algorithm.setup(problem), "server state", "memory")
        self._state("setup", "server state", server, None)
        self._state("setup", "memory", memory, self.clients)
        for part in (*server, *memory):
            if part in OURS or part.startswith(PREFIX):
                self._broken("setup", f"a part {part!r}, a name that is taken; give it another")
        return server, memory

    def download(self, server: ServerState, cohort: Cohort) -> Message:
        """See Algorithm."""
        return self._message("download", "message", self._call("download", server=server, cohort=cohort))

    def deliver(self, server: ServerState, cohort: Cohort) -> Message:
        """See Algorithm."""
        return self._message("deliver", "message", self._call("deliver", server=server, cohort=cohort))

    def client(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Message, Memory]:
        """See Algorithm."""
        result = self._call("client", trainer=trainer, download=download, memory=memory)
        upload, new = self._pair("client", result, "upload", "memory")
        self._message("client", "upload", upload)
        self._state("client", "memory", new, self.clients)
        self._same_parts("client", "memory", memory, new, HINT)
        for part, rows in new.items():
            for name, value in rows.items():
                old = memory[part][name]
                if value.shape != old.shape or value.dtype != old.dtype:
                    what = f"memory part {part!r} with {name!r} as {_kind(value)}"
                    self._broken("client", f"{what}; setup() declared {_kind(old)}")
        return upload, new

    def server(self, server: ServerState, cohort: Cohort, upload: Message) -> tuple[ServerState, Info]:
        """See Algorithm."""
        result = self._call("server", server=server, cohort=cohort, upload=upload)
        new, info = self._pair("server", result, "server state", "info")
        self._state("server", "server state", new, None)
        self._same_parts("server", "server state", server, new, "return all parts, also those that stay")
        if not isinstance(info, Mapping) or not all(isinstance(value, Tensor) for value in info.values()):
            self._broken("server", f"info {_kind(info)}; must be name -> tensor, {{}} where there is nothing to report")
        if "weights" in info and info["weights"].shape != (self.clients, self.clients):
            what = f"info 'weights' {_kind(info['weights'])}"
            self._broken("server", f"{what}; must be P, {(self.clients,) * 2}: row i is who client i weighs")
        return new, info

    def personal(self, trainer: Trainer, download: Message, memory: Memory) -> tuple[Stack, Memory]:
        """See Algorithm."""
        result = self._call("personal", trainer=trainer, download=download, memory=memory)
        made, own = self._pair("personal", result, "models", "memory")
        self._state("personal", "memory", own, None)
        if "buffers" not in own:
            self._broken("personal", f"a memory without part 'buffers'; {HINT}")
        return self._models("personal", made), own

    def trained(self, upload: Message, memory: Memory) -> Stack:
        """See Algorithm."""
        return self._models("trained", self._call("trained", upload=upload, memory=memory))

    def _call(self, method: str, **arguments: Any) -> Any:
        """The return value of a method; the error for a missing part lists the existing ones."""
        try:
            return getattr(self.algorithm, method)(*arguments.values())
        except KeyError as error:
            states = {name: list(value) for name, value in arguments.items() if isinstance(value, Mapping)}
            there = ", ".join(f"{name} has {parts}" for name, parts in states.items())
            what = f"{method}() looks for {error}, which is not there: {there}"
            raise InputError(f"algorithm {type(self.algorithm).__name__}: {what}") from error

    def _pair(self, method: str, result: Any, first: str, second: str) -> tuple[Any, Any]:
        if not isinstance(result, tuple) or len(result) != 2:
            self._broken(method, f"{_kind(result)}; must be a pair ({first}, {second})")
        return result

    def _message(self, method: str, what: str, message: Any) -> Parts:
        """Check a message. Names must have no blanks, which separate them on the network."""
        self._state(method, what, message, self.clients)
        for part, rows in message.items():
            for name in rows:
                if " " in part + name:
                    self._broken(method, f"{what} part {part!r} with {name!r}; names in messages must have no blanks")
        return message  # type: ignore[no-any-return]  # checked above

    def _state(self, method: str, what: str, state: Any, rows: int | None) -> None:
        """Check part -> name -> tensor; with `rows`, each tensor must have that number of rows."""
        if not isinstance(state, Mapping):
            self._broken(method, f"{what} {_kind(state)}; must be {STRUCTURE}")
        for part, tensors in state.items():
            if not isinstance(part, str) or not part or "/" in part:
                self._broken(method, f"{what} part {part!r}; must be a name without '/'")
            if not isinstance(tensors, Mapping):
                self._broken(method, f"{what} part {part!r} as {_kind(tensors)}; must be a mapping name -> tensor")
            for name, value in described(tensors).items():
                self._tensor(method, f"{what} part {part!r} with {name!r} as", value, rows)

    def _tensor(self, method: str, what: str, value: Any, rows: int | None) -> None:
        if not isinstance(value, Tensor):
            self._broken(method, f"{what} {_kind(value)}; must be a tensor")
        if rows is not None and (value.ndim == 0 or len(value) != rows):
            self._broken(method, f"{what} {_kind(value)}; must have {rows} rows, one for each client")

    def _same_parts(self, method: str, what: str, old: Parts, new: Parts, hint: str) -> None:
        """Check that the parts and names are exactly those that `setup` declared."""
        for part in new.keys() - old.keys():
            self._broken(method, f"{what} part {part!r}, which setup() did not declare: it would be lost")
        for part in old.keys() - new.keys() - {KEPT, STATISTICS}:
            self._broken(method, f"{what} without part {part!r}; {hint}")
        for part in new:
            if new[part].keys() != old[part].keys():
                named = " and ".join(repr(list(rows[part])) for rows in (new, old))
                self._broken(method, f"{what} part {part!r} with other names than setup() declared: {named}")

    def _models(self, method: str, models: Any) -> Stack:
        if not isinstance(models, Mapping):
            self._broken(method, f"models as {_kind(models)}; must be a mapping parameter name -> (m, *shape)")
        if models.keys() != self.model.keys():
            wrong = sorted(models.keys() ^ self.model.keys(), key=str)[0]
            self._broken(method, f"models with {wrong!r} missing or too much; must be those of the model's parameters")
        for name, value in models.items():
            self._tensor(method, f"models with {name!r} as", value, self.clients)
            if tuple(value.shape[1:]) != self.model[name]:
                self._broken(method, f"models with {name!r} as {_kind(value)}; a row must be {self.model[name]}")
        return models

    def _broken(self, method: str, what: str) -> NoReturn:
        raise InputError(f"algorithm {type(self.algorithm).__name__}: {method}() returned {what}")


def _kind(value: Any) -> str:
    """A short description of a value."""
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else f"a {type(value).__name__}"
