"""Losses and metrics by name: functions of a network's outputs and of the targets.

A loss returns the mean over a batch as a differentiable tensor. A metric receives all test samples of one client as CPU
tensors and returns a number; NaN if it is undefined. `per-class` expands to one metric per class: see `metrics_of`.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from feddwa import plugins
from feddwa.data.labels import PADDING
from feddwa.errors import InputError
from feddwa.plugins import Unfit, check_arguments

ARGUMENTS = ("outputs", "targets")


def adopt(function: Any) -> Callable[..., Any]:
    """A function from outside the package as a loss or a metric; a class without arguments is instantiated."""
    made = function() if inspect.isclass(function) and not _needs(function) else function
    if not callable(made) or inspect.isclass(made):
        raise Unfit(f"is a {type(made).__name__}, must be a function of ({', '.join(ARGUMENTS)})")
    check_arguments(made, ARGUMENTS, getattr(made, "__name__", type(made).__name__))
    return made  # type: ignore[no-any-return]


def _needs(kind: type) -> bool:
    """Whether a class needs arguments."""
    empty, variable = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = inspect.signature(kind).parameters.values()
    return any(each.default is empty and each.kind not in variable for each in known)


def next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the next token at every position: scores (B, L, V) for tokens (B, L).

    The mean over the tokens of the batch. Targets of -100 are padding and ignored.
    """
    if outputs.ndim != 3 or targets.is_floating_point() or outputs.shape[:2] != targets.shape:
        raise ValueError(f"needs scores (B, L, V) and tokens (B, L), got {_shape(outputs)} and {_shape(targets)}")
    present = targets != PADDING
    wanted = targets.masked_fill(~present, 0).unsqueeze(-1)
    losses = -outputs.log_softmax(-1).gather(-1, wanted).squeeze(-1)  # (B, L)
    return losses.masked_fill(~present, 0).sum() / present.sum().clamp(min=1)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error; outputs and targets have equally many numbers."""
    return F.mse_loss(*_alike(outputs, targets))


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error."""
    return F.l1_loss(*_alike(outputs, targets))


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Huber's loss: squared below an error of 1, absolute above it."""
    return F.huber_loss(*_alike(outputs, targets))


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of scores before the sigmoid, one for each target from 0 to 1."""
    return F.binary_cross_entropy_with_logits(*_alike(outputs, targets))


def macro_f1(outputs: Tensor, targets: Tensor) -> float:
    """Mean of the F1 scores of the classes that the client's targets have, in percent."""
    confusion = _confusion(outputs, targets)
    right, present = confusion.diagonal(), confusion.sum(1) > 0
    f1 = 2 * right / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    return float(100 * f1[present].mean())


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Mean of the per-class accuracies over the classes of the client's targets, in percent."""
    confusion = _confusion(outputs, targets)
    present = confusion.sum(1) > 0
    return float(100 * (confusion.diagonal()[present] / confusion.sum(1)[present]).mean())


def per_class(outputs: Tensor, targets: Tensor, number: int) -> float:
    """Accuracy on the client's samples of class `number`, in percent; one metric per class.

    NaN for a client without samples of the class. NaN scores count as wrong.
    """
    _check_classes(outputs, targets)
    scores = outputs[targets == number]
    return float(100 * ((scores.argmax(1) == number) & ~scores.isnan().any(1)).double().mean())


def token_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of the tokens to predict that have the highest score, in percent; padding (-100) is ignored."""
    scores, tokens = _tokens(outputs, targets)
    return float(100 * (scores.argmax(1) == tokens).double().mean())


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """exp of the mean cross-entropy of the tokens to predict; padding (-100) is ignored. 1 at best."""
    scores, tokens = _tokens(outputs, targets)
    return float(cross_entropy(scores.double(), tokens).exp())


def auc_macro(outputs: Tensor, targets: Tensor) -> float:
    """Mean over classes of the area under the ROC curve, one class against the rest, of softmax scores, in percent.

    Over the classes of the client's targets; NaN if there is only one.
    """
    labels, shares = _one_hot(outputs, targets), outputs.double().softmax(1)
    areas = [_auc(shares[:, c], labels[:, c]) for c in range(labels.shape[1]) if labels[:, c].any()]
    return 100 * sum(areas) / len(areas)


def auc_micro(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve of all raw outputs against the one-hot labels, pooled, in percent, as in PFLlib."""
    return 100 * _auc(outputs.double().flatten(), _one_hot(outputs, targets).flatten())


def ece(outputs: Tensor, targets: Tensor) -> float:
    """Expected calibration error, in percent: 15 bins of equal width of the largest softmax score.

    The mean over samples of the difference between accuracy and mean score in the sample's bin (Guo et al., 2017).
    """
    right = _one_hot(outputs, targets)[torch.arange(len(targets)), outputs.argmax(1)].double()
    sure = outputs.double().softmax(1).amax(1)
    if not bool(sure.isfinite().all()):
        return float("nan")
    place = (sure * BINS).ceil().long().clamp(1, BINS) - 1  # (0, 1/15], (1/15, 2/15], ...
    gap = torch.zeros(BINS, dtype=torch.float64).index_add(0, place, right - sure)
    return float(100 * gap.abs().sum() / len(targets))


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error."""
    return float(mse(outputs.double(), targets.double()).sqrt())


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> float:
    """Mean absolute error."""
    return float(mae(outputs.double(), targets.double()))


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Share of the targets' variance that is explained; NaN if that is 0."""
    found, wanted = _alike(outputs.double(), targets.double())
    total = (wanted - wanted.mean(0)).square().sum()
    return float(1 - (found - wanted).square().sum() / total) if total > 0 else float("nan")


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": cross_entropy,
    "mse": mse,
    "mae": mae,
    "huber": huber,
    "bce": bce,
    "next-token": next_token,
}
BINS = 15  # bins of `ece`
NUMERIC = ("mse", "mae", "huber")  # losses with numeric targets, even if these look like classes
METRICS: dict[str, Callable[..., float]] = {
    "macro-f1": macro_f1,
    "balanced-accuracy": balanced_accuracy,
    "per-class": per_class,
    "auc-macro": auc_macro,
    "auc-micro": auc_micro,
    "ece": ece,
    "rmse": rmse,
    "mae": mean_absolute_error,
    "r2": r2,
    "token-accuracy": token_accuracy,
    "perplexity": perplexity,
}


def metrics_of(entries: Iterable[str], classes: int) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """Name -> function of the metrics in `--metric`; classes: 0 unless every sample has one class.

    `per-class` expands to a metric per class, "per-class 0", ...; no other metric has a space in its name.
    """
    found: dict[str, Callable[[Tensor, Tensor], Any]] = {}
    for name, function in map(plugins.metric_of, entries):
        metric = plugins.METRICS.find(function)
        if metric is not per_class:
            found[name] = metric
        elif classes:
            found |= {f"{name} {number}": partial(per_class, number=number) for number in range(classes)}
        else:
            raise InputError(f"--metric {name}: needs data with one class per sample, which these do not have")
    return found


def _alike(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (B, 1) for targets (B,), and others with equally many numbers, in the targets' shape and dtype."""
    if outputs.numel() != targets.numel():
        raise ValueError(f"{outputs.numel()} outputs for {targets.numel()} targets")
    return outputs.reshape(targets.shape), targets.to(outputs.dtype)


def _tokens(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (k, V) and tokens (k,) of the k tokens to predict: one per sample, or one or padding at every position."""
    if outputs.ndim != targets.ndim + 1 or outputs.shape[:-1] != targets.shape or targets.is_floating_point():
        raise ValueError(
            f"needs scores (n, L, V) and tokens (n, L), or (n, V) and (n,), got {_shape(outputs)} and {_shape(targets)}"
        )
    present = targets != PADDING
    return outputs[present], targets[present]


def _check_classes(outputs: Tensor, targets: Tensor, fewest: int = 1) -> None:
    """Raise unless these are scores of at least `fewest` classes, and class labels."""
    if outputs.ndim != 2 or outputs.shape[1] < fewest or targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(f"needs class scores (n, C) and labels (n,), got {_shape(outputs)} and {_shape(targets)}")


def _confusion(outputs: Tensor, targets: Tensor) -> Tensor:
    """(C, C) float64: samples by true class and predicted class."""
    _check_classes(outputs, targets)
    classes = outputs.shape[1]
    counts = torch.bincount(targets * classes + outputs.argmax(1), minlength=classes * classes)
    return counts.reshape(classes, classes).double()


def _one_hot(outputs: Tensor, targets: Tensor) -> Tensor:
    """(n, C) bool: the class of every sample."""
    _check_classes(outputs, targets, fewest=2)
    return F.one_hot(targets, outputs.shape[1]).bool()


def _auc(scores: Tensor, positive: Tensor) -> float:
    """The share of pairs (positive, negative) in which the positive has the higher score; a tie counts one half.

    scores: (n,) float64; positive: (n,) bool. NaN if there is no such pair, or a score is NaN.
    """
    scores = scores.contiguous()
    ordered, positives = scores.sort().values, int(positive.sum())
    pairs = positives * (len(scores) - positives)
    if not pairs or bool(scores.isnan().any()):
        return float("nan")
    ranks = (torch.searchsorted(ordered, scores) + torch.searchsorted(ordered, scores, right=True) + 1) / 2
    return (float(ranks[positive].double().sum()) - positives * (positives + 1) / 2) / pairs


def _shape(value: Tensor) -> tuple[int, ...]:
    return tuple(value.shape)
