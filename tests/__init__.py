"""The tests. Imported first, so that what the package asks of torch is set before a test loads torch.

Where there is no GPU, Triton's kernels run in its interpreter; it, too, has to know before it is imported.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import feddwa  # noqa: F401
