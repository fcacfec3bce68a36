"""A training step of many clients as one compiled program.

`vmap` turns the step of one client into a step of a stack. Run eagerly, the transforms of `torch.func` cost tens of
microseconds per operation, more than the arithmetic of a small network. A recurring shape is therefore recorded once as
a flat list of ATen calls (`record.py`) that update the stack in place. On CUDA that list is captured in a CUDA graph,
and a step is one launch.

Recording does not change the result. On a CPU eager and recorded runs execute the same kernels in the same order; on a
GPU every run is a recorded one.
"""

import bisect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from feddwa.engine.fast.dispatch import implementation
from feddwa.engine.fast.record import RECORD_AFTER, record

Flat = Sequence[Tensor]
Step = Callable[[Flat, Flat, Tensor, Tensor], Flat]  # (work, constants, index, keys) -> new work; leading axis = rows

# Clients of many sizes make steps of many shapes. On a GPU a new shape (a recording, a graph) costs more than training
# some extra rows, so the number of rows is rounded up to these sizes.
USE_BUCKETS = {"cpu": False, "cuda": True}
LEADING_BUCKETS = [count << power for power in range(24) for count in (4, 6)]  # 4, 6, 8, 12, 16, 24, ...
LISTED_BUCKETS = [16 * 4**power for power in range(12)]  # rows with a last, short batch: few, of up to B - 1 lengths

aten = torch.ops.aten


class Program:
    """A stack of work (models, BatchNorm statistics) and a vectorised step that advances some of its rows in place.

    work, constants: tensors (rows, *shape). `load` copies them in, `run` makes a step, `read` copies the work out.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.work: list[Tensor] = []
        self.constants: list[Tensor] = []
        self._num_rows = 0  # rows in use
        self._num_active = 0  # the first of these are still training
        self._finished: list[Tensor] = []  # saved work of the others, which padding to a bucket would train further
        self._uses: dict[object, int] = {}
        self._recorded: dict[object, Callable[..., None]] = {}
        self._graphs: dict[object, _CapturedGraph] = {}

    @property
    def capacity(self) -> int:
        """Number of rows in storage."""
        return len(self.work[0])

    def load(self, work: Flat, constants: Flat) -> None:
        """Copy in the work (m, *shape) and its constants (m, *shape)."""
        m = self._num_rows = self._num_active = len(work[0])
        if not work[0].is_cuda:
            self._finished = []
            self.work = [_allocate_like(value).copy_(value) for value in work]
            # a recording holds for one memory layout, and constants may be weights of convolutions
            self.constants = [_allocate_like(value).copy_(value) for value in constants]
            return
        if not self.work or self.capacity < m:  # graphs hold addresses: keep storage while it is large enough
            self.work = [_allocate_like(value) for value in work]
            self.constants = [_allocate_like(value) for value in constants]
            self._finished = []
            self._graphs.clear()
        for static, value in zip((*self.work, *self.constants), (*work, *constants), strict=True):
            static[:m].copy_(value)

    def read(self, m: int) -> list[Tensor]:
        """The current work of the first m rows: (m, *shape) each."""
        self._restore_finished()
        if not self.work[0].is_cuda:
            return self.work
        return [value[:m].clone(memory_format=torch.contiguous_format) for value in self.work]

    def run(self, rows: int | Tensor, index: Tensor, keys: Tensor) -> None:
        """Advance some rows by one step.

        rows: the first `rows` rows, or their numbers (a,). index: (a, B), their samples. keys: (a,), for dropout.
        """
        count = len(index)
        if isinstance(rows, Tensor):
            self._restore_finished()
            if USE_BUCKETS[index.device.type]:  # pad with the last row: each copy writes the same values
                count = round_up(count, LISTED_BUCKETS)
            self._run(*(_repeat_last(value, count) for value in (rows, index, keys)))
        else:
            if rows > self._num_active:  # another epoch
                self._restore_finished()
            if USE_BUCKETS[index.device.type]:
                count = min(round_up(count, LEADING_BUCKETS), self.capacity)
                self._save_finished(rows)
            self._run(count, _repeat_last(index, count), _repeat_last(keys, count))

    def _save_finished(self, active: int) -> None:
        """Save the work of rows beyond the first `active`: padding will overwrite it."""
        if active < self._num_active:
            self._finished = self._finished or [torch.empty_like(value) for value in self.work]
            _copy_rows(self._finished, self.work, slice(active, self._num_active))
            self._num_active = active

    def _restore_finished(self) -> None:
        """Write the saved work of finished rows back."""
        if self._num_active < self._num_rows:
            _copy_rows(self.work, self._finished, slice(self._num_active, self._num_rows))
            self._num_active = self._num_rows

    def _run(self, rows: int | Tensor, index: Tensor, keys: Tensor) -> None:
        """`run` of rows that fill their bucket: eager, recorded or captured, depending on the uses of the shape."""
        shape = (isinstance(rows, int), index.shape, self._layout(rows))
        uses = self._uses[shape] = self._uses.get(shape, 0) + 1
        if uses <= RECORD_AFTER[index.device.type]:
            self._apply(self._eager, rows, index, keys)
        elif not index.is_cuda:
            self._apply(self._record(rows, index, keys), rows, index, keys)
        else:
            if shape not in self._graphs:
                recorded = self._record(rows, index, keys)
                pool = next((graph.graph.pool() for graph in self._graphs.values()), None)  # they run in turn: one pool
                self._graphs[shape] = _CapturedGraph(
                    lambda *inputs: self._apply(recorded, *inputs), pool, rows, index, keys
                )
            self._graphs[shape].replay(rows, index, keys)

    def _apply(self, advance: Callable[..., None], rows: int | Tensor, index: Tensor, keys: Tensor) -> None:
        """Let `advance(*work, *constants, index, keys)` update some rows in place; listed rows are gathered first."""
        if isinstance(rows, int):
            advance(*[value[:rows] for value in (*self.work, *self.constants)], index, keys)
            return
        work = [value[rows] for value in self.work]
        advance(*work, *[value[rows] for value in self.constants], index, keys)
        for value, new in zip(self.work, work, strict=True):
            value.index_copy_(0, rows, new)

    def _flat_step(self, *inputs: Tensor) -> Flat:
        """The step with its arguments in one list: (*work, *constants, index, keys) -> new work."""
        num_work = len(self.work)
        return self.step(inputs[:num_work], inputs[num_work:-2], inputs[-2], inputs[-1])

    def _eager(self, *inputs: Tensor) -> None:
        for old, new in zip(inputs, self._flat_step(*inputs), strict=False):  # outputs match the leading inputs
            old.copy_(new)

    def _record(self, rows: int | Tensor, index: Tensor, keys: Tensor) -> Callable[..., None]:
        """The recorded step for index of this shape."""
        if (shape := (index.shape, self._layout(rows))) not in self._recorded:
            chosen = slice(rows) if isinstance(rows, int) else rows
            example = [*(value[chosen].clone() for value in self.work), *(value[chosen] for value in self.constants)]
            module = record(self._flat_step, [*example, index, keys])
            self._recorded[shape] = make_in_place(module, fused=index.is_cuda).forward
        return self._recorded[shape]

    def _layout(self, rows: int | Tensor) -> object:
        """The strides of constants, for which alone a recorded step is valid: on a CPU, rows may share memory."""
        shared = isinstance(rows, int) and not all(value.is_contiguous() for value in self.constants)
        return tuple(value.stride() for value in self.constants) if shared else None


def _allocate_like(value: Tensor) -> Tensor:
    """Storage of a tensor's shape. Convolution weights (m, O, C, kh, kw) have channels last, as the kernels expect."""
    if value.ndim == 5 and implementation(value) == "kernels":
        return torch.empty_like(value.movedim(2, -1), memory_format=torch.contiguous_format).movedim(-1, 2)
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def round_up(count: int, buckets: Sequence[int]) -> int:
    """The smallest bucket of an ascending list that is at least `count`."""
    return buckets[bisect.bisect_left(buckets, count)]


def _copy_rows(into: Flat, values: Flat, rows: slice) -> None:
    """Copy some rows of every tensor, in one call per dtype."""
    for dtype in {value.dtype for value in values}:
        alike = [position for position, value in enumerate(values) if value.dtype == dtype]
        torch._foreach_copy_([into[n][rows] for n in alike], [values[n][rows] for n in alike])


def _repeat_last(values: Tensor, count: int) -> Tensor:
    """`values` (k, ...) with the last one repeated: (count, ...)."""
    if count == len(values):
        return values
    return torch.cat([values, values[-1:].expand(count - len(values), *values.shape[1:])])


class _CapturedGraph:
    """A CUDA graph of `function(rows, index, keys)`, whose other tensors stay at fixed addresses."""

    def __init__(
        self, function: Callable[..., None], pool: Any, rows: int | Tensor, index: Tensor, keys: Tensor
    ) -> None:
        self.inputs = [value.clone() if isinstance(value, Tensor) else value for value in (rows, index, keys)]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            function(*self.inputs)

    def replay(self, *inputs: int | Tensor) -> None:
        """Copy the inputs to the graph's addresses and launch it."""
        for static, value in zip(self.inputs, inputs, strict=True):
            if isinstance(static, Tensor) and isinstance(value, Tensor):
                static.copy_(value)
        self.graph.replay()


def make_in_place(module: fx.GraphModule, fused: bool) -> fx.GraphModule:
    """Rewrite a recorded `step(*work, ...) -> new work` so that it overwrites its work and returns nothing.

    An update `add(work, gradient)` whose old value is no longer needed becomes `add_`, which avoids a second stack in
    memory. fused: a gradient that is a matrix product is added while it is computed (`baddbmm_`) and never written; all
    other updates of a kind are one call.
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
                copied = graph.call_function(aten.clone.default, (new,)) if _may_alias_input(new) else new
                overwritten.append((old, copied))
    with graph.inserting_before(output):  # after every read of the old values
        _insert_additions(graph, added, fused)
        _insert_copies(graph, overwritten, fused)
    output.args = (None,)
    graph.eliminate_dead_code()
    module.recompile()
    return module


def _insert_additions(graph: fx.Graph, updates: Sequence[tuple[fx.Node, fx.Node]], fused: bool) -> None:
    """Insert `old.add_(gradient, alpha=alpha)` for every update (old, add(old, gradient, alpha=alpha)).

    Updates by a number, such as counts of batches, are one call. fused: so are gradients with the same alpha.
    """
    by_alpha: dict[Any, list[tuple[fx.Node, fx.Node]]] = {}  # alpha -> (old, gradient)
    counters: dict[Any, list[fx.Node]] = {}  # number -> what it is added to
    for old, new in updates:
        gradient: Any = new.args[1]
        alpha = new.kwargs.get("alpha", 1)
        if not isinstance(gradient, fx.Node):
            counters.setdefault(gradient * alpha, []).append(old)
        elif fused and (operands := _bmm_operands(gradient)):
            graph.call_function(aten.baddbmm_.default, (old, *operands), {"alpha": alpha})
        elif fused and _same_layout(old, gradient):
            by_alpha.setdefault(alpha, []).append((old, gradient))
        else:
            graph.call_function(aten.add_.Tensor, (old, gradient), {"alpha": alpha})
    for alpha, pairs in by_alpha.items():
        graph.call_function(aten._foreach_add_.List, _unzip(pairs), {"alpha": alpha})
    for number, counted in counters.items():
        graph.call_function(aten._foreach_add_.Scalar, (counted, number))


def _insert_copies(graph: fx.Graph, results: Sequence[tuple[fx.Node, fx.Node]], fused: bool) -> None:
    """Insert `old.copy_(new)` for every result (old, new). fused: one call per dtype."""
    by_dtype: dict[torch.dtype, list[tuple[fx.Node, fx.Node]]] = {}
    for old, new in results:
        if fused and _same_layout(old, new):
            by_dtype.setdefault(old.meta["dtype"], []).append((old, new))
        else:
            graph.call_function(aten.copy_.default, (old, new))
    for pairs in by_dtype.values():
        graph.call_function(aten._foreach_copy_.default, _unzip(pairs))


def _same_layout(old: fx.Node, new: fx.Node) -> bool:
    """Whether shape, dtype and strides agree: only then does torch fuse a list of such pairs into one kernel."""
    return all(old.meta[key] == new.meta.get(key) for key in ("shape", "dtype", "strides"))


def _unzip(pairs: Sequence[tuple[fx.Node, fx.Node]]) -> tuple[Any, ...]:
    """[(old, new), ...] -> ([old, ...], [new, ...])."""
    return tuple(list(column) for column in zip(*pairs, strict=True))


def _bmm_operands(node: fx.Node) -> tuple[Any, ...]:
    """Operands of a batched matrix product behind an even number of transpositions, if it has no other user; else ().

    Its one user is the update that is being rewritten.
    """
    transposes = 0
    while node.target is aten.transpose.int and node.args[1:] == (1, 2) and len(node.users) == 1:
        node, transposes = node.args[0], transposes + 1  # type: ignore[assignment]  # what is transposed is a node
    return node.args if node.target is aten.bmm.default and len(node.users) == 1 and transposes % 2 == 0 else ()


def _may_alias_input(node: fx.Node) -> bool:
    """Whether a node may share memory with an input, so that overwriting one would change the other."""
    if node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]  # of several results
    return node.op == "placeholder" or bool(getattr(node.target, "is_view", False))
