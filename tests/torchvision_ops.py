"""torchvision and timm as the tests import them.

torchvision's wheels of the package index are built for another torch than the CPU's and then lack their compiled
operators. The networks are pure Python, so it is enough to declare the operators that `import torchvision` asks for.
"""

import importlib.util

import torch

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_LIBRARIES: list[torch.library.Library] = []  # a library's operators live as long as the object


def declare() -> None:
    """Declare torchvision's operators, once, where torchvision is installed without working ones."""
    if _LIBRARIES or importlib.util.find_spec("torchvision") is None or hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}{SIGNATURE}")
    _LIBRARIES.append(library)
