"""Writing down what a function does to tensors: a flat list of ATen calls, with vmap and grad resolved.

Below the transforms of `torch.func` there are only plain tensors and plain calls. A dispatch mode sees every one of
them, and writes it into an `fx.Graph` as it happens: some milliseconds a step, where tracing with symbolic stand-ins
takes some hundred.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

# Eager runs before something is recorded: recording costs some tens of milliseconds, an eager step one or two more than
# a recorded one on a CPU, and on a GPU a multiple of it.
RECORD_AFTER = {"cpu": 10, "cuda": 0}

aten = torch.ops.aten


def record(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """A module that does to its inputs what the function does to these. What it knows of a result is in its meta."""
    recorder = _Recorder()
    for number, value in enumerate(inputs):
        recorder.know(value, recorder.graph.placeholder(f"input_{number}"))
    with recorder:
        outputs = function(*inputs)
    recorder.graph.output([recorder.node(value) for value in outputs])
    for simplify in (_drop_identities, _drop_shapes, _drop_overwritten, _drop_counted):
        simplify(recorder.graph)
    recorder.graph.eliminate_dead_code()
    return fx.GraphModule(recorder.constants, recorder.graph)


class Recurring:
    """A function of tensors that is recorded once it is called with inputs laid out as they have been before."""

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self.function = function
        self._uses: Counter[object] = Counter()
        self._recorded: dict[object, Callable[..., Sequence[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """What the function returns."""
        layout = tuple((value.shape, value.stride(), value.dtype) for value in inputs)
        self._uses[layout] += 1
        if self._uses[layout] <= RECORD_AFTER[inputs[0].device.type]:
            return self.function(*inputs)
        if layout not in self._recorded:
            self._recorded[layout] = record(self.function, inputs).forward
        return self._recorded[layout](*inputs)


class _Recorder(TorchDispatchMode):
    """Every call on plain tensors becomes a node; a tensor that came from nowhere is a constant.

    A tensor carries its node itself, so what the function lets go is free while it runs. (A dictionary with weak keys
    would do as well, but Python swallows a Ctrl-C that arrives in the callback of a weak reference.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        nodes = tree_map_only(Tensor, self.node, (args, kwargs))
        result = func(*args, **kwargs)
        call = self.graph.call_function(func, *nodes)
        if isinstance(result, Tensor):
            self.know(result, call)
        else:
            for position, value in enumerate(result):
                if isinstance(value, Tensor):
                    self.know(value, self.graph.call_function(operator.getitem, (call, position)))
        return result

    def know(self, value: Tensor, node: fx.Node) -> None:
        """From now on the tensor is what this node made."""
        strides = tuple(step for step, length in zip(value.stride(), value.shape, strict=True) if length > 1)
        node.meta |= {"shape": value.shape, "dtype": value.dtype, "strides": strides, "place": value.device}
        value._recorded = self, node  # type: ignore[attr-defined]

    def node(self, value: Tensor) -> fx.Node:
        """What made the tensor."""
        if getattr(value, "_recorded", (None,))[0] is not self:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self.know(value, self.graph.get_attr(name))
        known: fx.Node = value._recorded[1]  # type: ignore[attr-defined]
        return known


def _drop_shapes(graph: fx.Graph) -> None:
    """Make of ones that are like something ones of a shape: of a loss that is differentiated nothing else is used."""
    for node in graph.find_nodes(op="call_function", target=aten.ones_like.default):
        node.target, node.args = aten.ones.default, (list(node.meta["shape"]),)
        node.kwargs = {"dtype": node.meta["dtype"], "device": node.meta["place"]}


def _drop_overwritten(graph: fx.Graph) -> None:
    """A copy of an input that is read, and then overwritten as a whole, is the input and what overwrites it."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        copy, new = node.args
        same = copy.target is aten.clone.default and copy.args[0].op == "placeholder"
        if not same or any(copy.meta[known] != new.meta[known] for known in ("shape", "dtype")):
            continue
        before = [user for user in _users(copy) if user is not node]
        others = [user for value in (node, new) for user in _users(value) if user is not node]
        if all(position[user] < position[node] for user in before) and not any(map(_writes, before + others)):
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            copy.replace_all_uses_with(copy.args[0])
            graph.erase_node(copy)


def _drop_counted(graph: fx.Graph) -> None:
    """A copy of an input to which a number is added in place is their sum: BatchNorm counts its batches so."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=aten.add_.Tensor):
        copy, number = node.args
        if copy.target is not aten.clone.default or copy.args[0].op != "placeholder" or isinstance(number, fx.Node):
            continue
        others = [user for user in _users(copy) if user is not node]
        if all(position[user] > position[node] for user in others) and not any(map(_writes, others)):
            with graph.inserting_before(node):
                total = graph.call_function(aten.add.Tensor, (copy.args[0], number), node.kwargs)
            total.meta = dict(copy.meta)
            node.replace_all_uses_with(total)
            graph.erase_node(node)
            copy.replace_all_uses_with(total)
            graph.erase_node(copy)


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """Whoever looks at a tensor, also through views of it."""
    for user in node.users:
        yield user
        if user.target is operator.getitem or getattr(user.target, "is_view", False):
            yield from _users(user)


def _writes(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _drop_identities(graph: fx.Graph) -> None:
    """Remove views, expansions and multiplications by one that change nothing; batching rules leave many."""
    views = {aten.view.default, aten.expand.default, aten._unsafe_view.default}
    for node in list(graph.nodes):
        unchanged = node.target in views and node.meta["shape"] == node.args[0].meta["shape"]
        multiplied = node.target is aten.mul.Scalar and node.args[1] == 1 and not any(map(_writes, _users(node)))
        if unchanged or (multiplied and (node.args[0].op != "placeholder" or graph.output_node() not in node.users)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
