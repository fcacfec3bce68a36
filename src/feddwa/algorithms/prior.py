"""A client's class prior, which never leaves it: as class shares, and as a bias of the head (logit adjustment).

Menon et al. (ICLR 2021) add log class frequencies to the outputs during training. Here a client also uses its models
with them, since its test data have its own class frequencies.
"""

from torch import Tensor
from torch.nn import functional as F

from feddwa.algorithms.base import Problem
from feddwa.engine import Memory, Stack


def class_shares(problem: Problem, algorithm: str, like: Tensor) -> Tensor:
    """n_ic / n_i: (N, len(like)) in `like`'s type, 0 for outputs without a class; `algorithm` names the method in
    errors.
    """
    counts = problem.counts_for(algorithm).to(like)
    counts = F.pad(counts, (0, len(like) - counts.shape[1]))
    return counts / counts.sum(1, keepdim=True).clamp(min=1)


def log_prior(problem: Problem, prior: float) -> Stack:
    """l_i = log((n_ic + k / C) / (n_i + k)) with k = `prior`: (N, C), under the name of the head's bias.

    n_ic: training samples of class c. Empty if targets are not classes or the head has no bias.
    """
    bias = next((name for name in problem.head if name.endswith("bias")), None)
    if problem.label_counts is None or bias is None:
        return {}
    unseen = len(problem.initial[bias]) - problem.label_counts.shape[1]  # outputs for classes that no client has
    if unseen < 0:
        return {}
    counts = F.pad(problem.label_counts.double(), (0, unseen))
    frequencies = (counts + prior / counts.shape[1]) / (counts.sum(1, keepdim=True) + prior)
    return {bias: frequencies.log().to(problem.initial[bias])}


def add_prior(model: Stack, memory: Memory, sign: int = 1) -> Stack:
    """The models (m, *shape) with memory["prior"] added to the head's bias, or subtracted with sign = -1."""
    prior = memory["prior"]
    return {name: value + sign * prior[name] if name in prior else value for name, value in model.items()}
