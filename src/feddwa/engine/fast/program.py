"""A step of many clients as one compiled program.

`vmap` turns the step of one client into a step of a stack. Run eagerly, the transforms of `torch.func` cost tens of
microseconds per operation, more than the arithmetic of a small network. So a shape that recurs is recorded once as a
flat list of ATen calls (vmap and grad are resolved by then) that update the stack in place; on CUDA that list is
captured in a CUDA graph besides, and a step is one launch. When it is recorded never shows in the result: on a CPU
eager and recorded runs execute the same kernels in the same order, and on a GPU every run is a recorded one.
"""

import bisect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from feddwa.engine.fast.dispatch import form
from feddwa.engine.fast.record import RECORD_AFTER, record

Flat = Sequence[Tensor]
Step = Callable[[Flat, Flat, Tensor, Tensor], Flat]  # (work, constants, index, keys) -> new work; leading axis = rows

# Clients of many different sizes make steps of many shapes, and on a GPU a new shape costs more (a recording, a graph)
# than some rows too many: there, numbers of rows are rounded up to these.
ROUNDED = {"cpu": False, "cuda": True}
LEADING = [count << power for power in range(24) for count in (4, 6)]  # 4, 6, 8, 12, 16, 24, ...
LISTED = [16 * 4**power for power in range(12)]  # of rows with a last, short batch: few rows, up to B - 1 lengths

aten = torch.ops.aten


class Program:
    """A stack of work (models, BatchNorm statistics) and a vectorised step that advances some of its rows in place."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.work: list[Tensor] = []
        self.constants: list[Tensor] = []
        self._loaded = self._moving = 0  # rows that are in use, and how many of them, the first ones, still move
        self._finished: list[Tensor] = []  # the others, where rounding up moves them on
        self._uses: dict[tuple[bool, torch.Size], int] = {}
        self._recorded: dict[torch.Size, Callable[..., None]] = {}
        self._graphs: dict[tuple[bool, torch.Size], _Graph] = {}

    @property
    def rows(self) -> int:
        """How many rows there is room for."""
        return len(self.work[0])

    def load(self, work: Flat, constants: Flat) -> None:
        """Take in copies of the work, and the constants that go with it."""
        m = self._loaded = self._moving = len(work[0])
        if not work[0].is_cuda:
            self._finished = []
            self.work = [_room(value).copy_(value) for value in work]
            self.constants = list(constants)
            return
        if not self.work or self.rows < m:  # graphs hold addresses: storage stays where it is while it suffices
            self.work, self.constants = [_room(value) for value in work], [_room(value) for value in constants]
            self._finished = []
            self._graphs.clear()
        for static, value in zip((*self.work, *self.constants), (*work, *constants), strict=True):
            static[:m].copy_(value)

    def read(self, m: int) -> list[Tensor]:
        """The work of the first m rows, as it is now."""
        self._bring_back()
        if not self.work[0].is_cuda:
            return self.work
        return [value[:m].clone(memory_format=torch.contiguous_format) for value in self.work]

    def run(self, rows: int | Tensor, index: Tensor, keys: Tensor) -> None:
        """Advance the first `rows` rows, or the rows listed, by one step on the samples `index` (a, b)."""
        count = len(index)
        if isinstance(rows, Tensor):
            self._bring_back()
            if ROUNDED[index.device.type]:  # the last one again and again: as often as it is written it is the same
                count = _round_up(count, LISTED)
            self._run(*(_filled(value, count) for value in (rows, index, keys)))
        else:
            if rows > self._moving:  # another epoch
                self._bring_back()
            if ROUNDED[index.device.type]:
                count = min(_round_up(count, LEADING), self.rows)
                self._set_aside(rows)
            self._run(count, _filled(index, count), _filled(keys, count))

    def _set_aside(self, moving: int) -> None:
        """Keep the rows that move no more, because rounding up will move them on."""
        if moving < self._moving:
            self._finished = self._finished or [torch.empty_like(value) for value in self.work]
            _copy(self._finished, self.work, slice(moving, self._moving))
            self._moving = moving

    def _bring_back(self) -> None:
        """All rows as they ought to be."""
        if self._moving < self._loaded:
            _copy(self.work, self._finished, slice(self._moving, self._loaded))
            self._moving = self._loaded

    def _run(self, rows: int | Tensor, index: Tensor, keys: Tensor) -> None:
        shape = (isinstance(rows, int), index.shape)
        uses = self._uses[shape] = self._uses.get(shape, 0) + 1
        if uses <= RECORD_AFTER[index.device.type]:
            self._apply(self._eager, rows, index, keys)
        elif not index.is_cuda:
            self._apply(self._record(rows, index, keys), rows, index, keys)
        else:
            if shape not in self._graphs:
                recorded = self._record(rows, index, keys)
                pool = next((graph.graph.pool() for graph in self._graphs.values()), None)  # they run in turn: one pool
                self._graphs[shape] = _Graph(lambda *inputs: self._apply(recorded, *inputs), pool, rows, index, keys)
            self._graphs[shape].replay(rows, index, keys)

    def _apply(self, advance: Callable[..., None], rows: int | Tensor, index: Tensor, keys: Tensor) -> None:
        if isinstance(rows, int):
            advance(*[value[:rows] for value in (*self.work, *self.constants)], index, keys)
            return
        work = [value[rows] for value in self.work]
        advance(*work, *[value[rows] for value in self.constants], index, keys)
        for value, new in zip(self.work, work, strict=True):
            value.index_copy_(0, rows, new)

    def _flat_step(self, *inputs: Tensor) -> Flat:
        cut = len(self.work)
        return self.step(inputs[:cut], inputs[cut:-2], inputs[-2], inputs[-1])

    def _eager(self, *inputs: Tensor) -> None:
        for old, new in zip(inputs, self._flat_step(*inputs), strict=False):  # outputs match the leading inputs
            old.copy_(new)

    def _record(self, rows: int | Tensor, index: Tensor, keys: Tensor) -> Callable[..., None]:
        if index.shape not in self._recorded:
            own = slice(rows) if isinstance(rows, int) else rows
            example = [value[own].clone() for value in (*self.work, *self.constants)]
            module = record(self._flat_step, [*example, index, keys])
            self._recorded[index.shape] = in_place(module, fused=index.is_cuda).forward
        return self._recorded[index.shape]


def _room(value: Tensor) -> Tensor:
    """Storage for its like. A convolution's weights (m, O, C, kh, kw) lie as our kernels read them, channels last."""
    if value.ndim == 5 and form(value) == "kernels":
        return torch.empty_like(value.movedim(2, -1), memory_format=torch.contiguous_format).movedim(-1, 2)
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _round_up(count: int, sizes: Sequence[int]) -> int:
    return sizes[bisect.bisect_left(sizes, count)]


def _copy(into: Flat, values: Flat, rows: slice) -> None:
    """Some rows of every tensor, in one call for all of a type."""
    for dtype in {value.dtype for value in values}:
        alike = [place for place, value in enumerate(values) if value.dtype == dtype]
        torch._foreach_copy_([into[place][rows] for place in alike], [values[place][rows] for place in alike])


def _filled(values: Tensor, count: int) -> Tensor:
    """`values` (k, ...) with the last one repeated to make `count`."""
    if count == len(values):
        return values
    return torch.cat([values, values[-1:].expand(count - len(values), *values.shape[1:])])


class _Graph:
    """A CUDA graph of a function of device tensors whose other inputs stay at fixed addresses."""

    def __init__(
        self, function: Callable[..., None], pool: Any, rows: int | Tensor, index: Tensor, keys: Tensor
    ) -> None:
        self.inputs = [value.clone() if isinstance(value, Tensor) else value for value in (rows, index, keys)]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            function(*self.inputs)

    def replay(self, *inputs: int | Tensor) -> None:
        for static, value in zip(self.inputs, inputs, strict=True):
            if isinstance(static, Tensor) and isinstance(value, Tensor):
                static.copy_(value)
        self.graph.replay()


def in_place(module: fx.GraphModule, fused: bool) -> fx.GraphModule:
    """Rewrite a recorded `step(*work, ...) -> new work` so that it returns nothing and overwrites its work instead.

    An update `add(work, gradient)` after which the old value is not needed becomes `add_`: no second stack in memory.
    `fused`: where the gradient is a matrix product, it is added as it is computed and never written.
    """
    graph = module.graph
    position = {node: number for number, node in enumerate(graph.nodes)}
    output = graph.output_node()
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    added, overwritten = [], []
    results: Any = output.args[0]
    for old, new in zip(placeholders, results, strict=False):
        last_use = max((position[user] for user in old.users), default=-1)
        if new.target is aten.add.Tensor and new.args[0] is old and last_use == position[new] and len(new.users) == 1:
            added.append((old, new))
        elif new is not old:
            with graph.inserting_before(output):
                overwritten.append((old, graph.call_function(aten.clone.default, (new,)) if _is_alias(new) else new))
    with graph.inserting_before(output):  # after every read of the old values
        _add(graph, added, fused)
        _overwrite(graph, overwritten, fused)
    output.args = (None,)
    graph.eliminate_dead_code()
    module.recompile()
    return module


def _add(graph: fx.Graph, updates: Sequence[tuple[fx.Node, fx.Node]], fused: bool) -> None:
    """Updates `add(old, gradient)` in place; counts in one call. `fused`: what is added with the same factor, too."""
    together: dict[Any, list[tuple[fx.Node, fx.Node]]] = {}  # alpha -> what it is the factor of
    counted: dict[Any, list[fx.Node]] = {}  # number -> what it is added to
    for old, new in updates:
        gradient: Any = new.args[1]
        alpha = new.kwargs.get("alpha", 1)
        if not isinstance(gradient, fx.Node):
            counted.setdefault(gradient * alpha, []).append(old)
        elif fused and (factors := _factors(gradient)):
            graph.call_function(aten.baddbmm_.default, (old, *factors), {"alpha": alpha})
        elif fused and _laid_out_alike(old, gradient):
            together.setdefault(alpha, []).append((old, gradient))
        else:
            graph.call_function(aten.add_.Tensor, (old, gradient), {"alpha": alpha})
    for alpha, pairs in together.items():
        graph.call_function(aten._foreach_add_.List, _columns(pairs), {"alpha": alpha})
    for number, counters in counted.items():
        graph.call_function(aten._foreach_add_.Scalar, (counters, number))


def _overwrite(graph: fx.Graph, results: Sequence[tuple[fx.Node, fx.Node]], fused: bool) -> None:
    """Put new values where the old ones are. `fused`: those of a type in one call."""
    together: dict[torch.dtype, list[tuple[fx.Node, fx.Node]]] = {}
    for old, new in results:
        if fused and _laid_out_alike(old, new):
            together.setdefault(old.meta["dtype"], []).append((old, new))
        else:
            graph.call_function(aten.copy_.default, (old, new))
    for pairs in together.values():
        graph.call_function(aten._foreach_copy_.default, _columns(pairs))


def _laid_out_alike(old: fx.Node, new: fx.Node) -> bool:
    """Whether a result is stored as the work is: only then many of them are one kernel."""
    return all(old.meta[known] == new.meta.get(known) for known in ("shape", "dtype", "strides"))


def _columns(pairs: Sequence[tuple[fx.Node, fx.Node]]) -> tuple[Any, ...]:
    return tuple(list(column) for column in zip(*pairs, strict=True))


def _factors(node: fx.Node) -> tuple[Any, ...]:
    """Of a batched matrix product that is used once, turned over any even number of times on the way; else none.

    The first use is the update itself, which is still there.
    """
    turns = 0
    while node.target is aten.transpose.int and node.args[1:] == (1, 2) and len(node.users) == 1:
        node, turns = node.args[0], turns + 1  # type: ignore[assignment]  # what is transposed is a node
    return node.args if node.target is aten.bmm.default and len(node.users) == 1 and turns % 2 == 0 else ()


def _is_alias(node: fx.Node) -> bool:
    """Whether a node may share memory with an input, so that overwriting one would change the other."""
    if node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]  # of several results
    return node.op == "placeholder" or bool(getattr(node.target, "is_view", False))
