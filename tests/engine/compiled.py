"""Compile every kernel that the steps of two small networks launch, for a GPU that need not be there.

Nothing is computed: where a kernel would be launched, it is compiled for the arguments that it has. Prints their
names. Triton's interpreter, which the other tests use, forgives what its compiler does not.
"""

import torch
from torch import nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as build
from triton.runtime.jit import JITFunction

from feddwa.data.federated import Batch
from feddwa.engine import keys
from feddwa.engine.fast import stacked_conv, stacked_norm, stacked_pool
from feddwa.engine.network import FunctionalClient, label_loss
from feddwa.engine.steps import SGDStep

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "*fp32", torch.int64: "*i64", torch.int8: "*i8"}
NETWORKS = {  # by precision of products: layers of the CIFAR CNN, and of ResNet-8
    "highest": nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(16), nn.Flatten(), nn.Dropout(),
        nn.LazyLinear(5),
    ),
    "high": nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 32, 3, 2, padding=1, bias=False), nn.Flatten(), nn.LazyLinear(5),
    ),
}  # fmt: skip
compiled: dict[object, str] = {}


def compile_only(self, *args, grid, warmup, num_stages=3, num_warps=4):
    """In place of a launch. Whole numbers that are one, or multiples of 16, are known to the compiler as such."""
    signature, constants, hints = {}, {}, {}
    for place, (param, value) in enumerate(zip(self.params, args, strict=True)):
        tensor = isinstance(value, torch.Tensor)
        told = not tensor and not param.do_not_specialize
        if param.is_constexpr or (told and value == 1):
            signature[param.name], constants[place,] = "constexpr", value
            continue
        signature[param.name] = TYPES[value.dtype] if tensor else "i64" if abs(value) >= 2**31 else "i32"
        if tensor or (told and value % 16 == 0):
            hints[place,] = [["tt.divisibility", 16]]
    known = self.__name__, str((signature, constants, hints)), num_stages, num_warps
    if known not in compiled:
        options = {"num_stages": num_stages, "num_warps": num_warps}
        build(ASTSource(self, signature, constants, hints), target=HOPPER, options=options)
        compiled[known] = self.__name__


def main() -> None:
    """A step of two clients each."""
    JITFunction.run = compile_only
    for module in (stacked_conv, stacked_norm, stacked_pool, keys):
        module.implementation = lambda x: "kernels"
    for precision, net in NETWORKS.items():
        torch.set_float32_matmul_precision(precision)
        x, y = torch.zeros(2, 20, 3, 8, 8), torch.zeros(2, 20, dtype=torch.int64)
        net(x[0])  # the last layer learns its size
        params, buffers = (
            {name: torch.stack([value.detach()] * 2) for name, value in named}
            for named in (net.named_parameters(), net.named_buffers())
        )

        def step(params, buffers, x, y, key, net=net):
            client = FunctionalClient(net, label_loss, buffers, key)
            return SGDStep(0.1)(client, {"model": params}, Batch(x, y))["model"]

        torch.vmap(step)(params, buffers, x, y, torch.zeros(2, dtype=torch.int64))
    print(*sorted(set(compiled.values())))


if __name__ == "__main__":
    main()
