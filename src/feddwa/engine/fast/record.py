"""Record the tensor operations of a function as a flat list of ATen calls, with vmap and grad resolved.

Below the transforms of `torch.func` there are only plain tensors and ATen calls. A dispatch mode records every call in
an `fx.Graph`. That takes some milliseconds per step; tracing with symbolic tensors takes hundreds.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

# Eager runs before a function is recorded, by device. Recording costs some tens of milliseconds. On a CPU an eager step
# costs one or two milliseconds more than a recorded one, on a GPU a multiple of it.
RECORD_AFTER = {"cpu": 10, "cuda": 0}

aten = torch.ops.aten


def record(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """Run `function(*inputs)` once and return a module that repeats its ATen calls on other inputs.

    The module takes tensors of the same shapes, strides and dtypes as `inputs`, and returns a list of the function's
    outputs. Nodes that are tensors have shape, dtype, strides and device in their `meta`.
    """
    recorder = _Recorder()
    for number, value in enumerate(inputs):
        recorder.bind(value, recorder.graph.placeholder(f"input_{number}"))
    with recorder:
        outputs = function(*inputs)
    recorder.graph.output([recorder.node_of(value) for value in outputs])
    for simplify in (_remove_identities, _replace_ones_like, _remove_overwritten_clones, _replace_counter_updates):
        simplify(recorder.graph)
    recorder.graph.eliminate_dead_code()
    return fx.GraphModule(recorder.constants, recorder.graph)


class RecordedFunction:
    """A function of tensors that is recorded when inputs of the same layout recur, and replayed from then on."""

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self.function = function
        self._uses: Counter[object] = Counter()  # by layout of the inputs
        self._recorded: dict[object, Callable[..., Sequence[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The function's outputs: eager for the first `RECORD_AFTER` calls with inputs of a layout, then recorded."""
        layout = tuple((value.shape, value.stride(), value.dtype) for value in inputs)
        self._uses[layout] += 1
        if self._uses[layout] <= RECORD_AFTER[inputs[0].device.type]:
            return self.function(*inputs)
        if layout not in self._recorded:
            self._recorded[layout] = record(self.function, inputs).forward
        return self._recorded[layout](*inputs)


class _Recorder(TorchDispatchMode):
    """Make a node of every ATen call. A tensor that no recorded call has made is a constant.

    A tensor carries its node as an attribute, so tensors that the function drops are freed while it runs. (A dictionary
    with weak keys would also work, but Python swallows a Ctrl-C that arrives in the callback of a weak reference.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        nodes = tree_map_only(Tensor, self.node_of, (args, kwargs))
        result = func(*args, **kwargs)
        call = self.graph.call_function(func, *nodes)
        if isinstance(result, Tensor):
            self.bind(result, call)
        else:
            for position, value in enumerate(result):
                if isinstance(value, Tensor):
                    self.bind(value, self.graph.call_function(operator.getitem, (call, position)))
        return result

    def bind(self, value: Tensor, node: fx.Node) -> None:
        """Record `node` as the origin of the tensor `value`."""
        strides = tuple(stride for stride, length in zip(value.stride(), value.shape, strict=True) if length > 1)
        node.meta |= {"shape": value.shape, "dtype": value.dtype, "strides": strides, "device": value.device}
        value._recorded = self, node  # type: ignore[attr-defined]

    def node_of(self, value: Tensor) -> fx.Node:
        """The node of a tensor; a new constant if it has none."""
        if getattr(value, "_recorded", (None,))[0] is not self:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self.bind(value, self.graph.get_attr(name))
        node: fx.Node = value._recorded[1]  # type: ignore[attr-defined]
        return node


def _replace_ones_like(graph: fx.Graph) -> None:
    """Replace `ones_like(x)` by `ones(shape)`, so that the loss itself is dead code after differentiation."""
    for node in graph.find_nodes(op="call_function", target=aten.ones_like.default):
        node.target, node.args = aten.ones.default, (list(node.meta["shape"]),)
        node.kwargs = {"dtype": node.meta["dtype"], "device": node.meta["device"]}


def _remove_overwritten_clones(graph: fx.Graph) -> None:
    """Replace `c = clone(x); ...; c.copy_(y)`, with x an input, by x before the copy and y after it.

    Only if shapes and dtypes agree, all other uses of the clone precede the copy, and nothing else writes to c or y.
    BatchNorm updates its running statistics in this way.
    """
    position = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        clone, new = node.args
        of_input = clone.target is aten.clone.default and clone.args[0].op == "placeholder"
        if not of_input or any(clone.meta[key] != new.meta[key] for key in ("shape", "dtype")):
            continue
        readers = [user for user in _users(clone) if user is not node]
        others = [user for value in (node, new) for user in _users(value) if user is not node]
        if all(position[user] < position[node] for user in readers) and not any(map(_writes, readers + others)):
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            clone.replace_all_uses_with(clone.args[0])
            graph.erase_node(clone)


def _replace_counter_updates(graph: fx.Graph) -> None:
    """Replace `clone(x).add_(number)`, with x an input, by `add(x, number)`: BatchNorm's count of batches."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=aten.add_.Tensor):
        clone, number = node.args
        if clone.target is not aten.clone.default or clone.args[0].op != "placeholder" or isinstance(number, fx.Node):
            continue
        others = [user for user in _users(clone) if user is not node]
        if all(position[user] > position[node] for user in others) and not any(map(_writes, others)):
            with graph.inserting_before(node):
                total = graph.call_function(aten.add.Tensor, (clone.args[0], number), node.kwargs)
            total.meta = dict(clone.meta)
            node.replace_all_uses_with(total)
            graph.erase_node(node)
            clone.replace_all_uses_with(total)
            graph.erase_node(clone)


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """All nodes that use a tensor, directly or through views of it."""
    for user in node.users:
        yield user
        if user.target is operator.getitem or getattr(user.target, "is_view", False):
            yield from _users(user)


def _writes(node: fx.Node) -> bool:
    """Whether a call mutates one of its arguments."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _remove_identities(graph: fx.Graph) -> None:
    """Remove views, expansions and multiplications by one without effect; the rules for vmap leave many."""
    views = {aten.view.default, aten.expand.default, aten._unsafe_view.default}
    for node in list(graph.nodes):
        same_shape = node.target in views and node.meta["shape"] == node.args[0].meta["shape"]
        times_one = node.target is aten.mul.Scalar and node.args[1] == 1 and not any(map(_writes, _users(node)))
        if same_shape or (times_one and (node.args[0].op != "placeholder" or graph.output_node() not in node.users)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
