"""Accuracies with explicit definition: which clients, which weighting, before or after training, best or last round.

Without class scores there is no accuracy, and a diverged model has no loss: such numbers are None here and null in the
files.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from feddwa.algorithms import Info
from feddwa.engine import Scores, map_scores
from feddwa.federation import Round
from feddwa.trained.newcomers import Served

Line = Mapping[str, Any]
PREFERRED = 4  # other clients with recorded affinity; with the client itself the five of the paper's figure


def round_line(result: Round, test_sizes: Tensor, validation_sizes: Tensor | None = None) -> dict[str, Any]:
    """The line of metrics.jsonl for a round. Accuracies are percent; all times are under "seconds".

    "before" = the personalised models at the start of the round, "after" = after local training, where absent clients
    keep their model. "weighted" = by test samples (by predicted tokens, for token targets), that is, the accuracy over
    all samples; "participants_weighted" is what the paper's code logs. Losses are means over all clients, too.
    Participants are the clients whose updates were used; "missing" has the others, by reason. Attackers are not
    evaluated: accuracies and losses cover honest clients alone. "metrics_before" and "metrics_after" have the run's
    metrics, means over the clients for which they are defined. "evaluated": the number of evaluated clients, if not
    all; if 0, every number is null. "central": before training, on all clients' test data together. "triggered": the
    success rate of a backdoor. "validation" and "validation_after" are as "before" and "after" on held-out training
    data, of the clients that have some; `validation_sizes`: (N,) their numbers of samples, None: nothing is held out.
    "preferred", if the method learns an affinity, has the clients with the largest one for every participant; "method"
    has the method's own numbers of the round.
    """
    cohort, costs, missing = result.cohort.ids, result.costs, by_reason(result.missing)
    after = map_scores(lambda old, new: old.index_copy(0, cohort, new), result.before, result.after)
    who = torch.arange(len(test_sizes)) if result.evaluated is None else result.evaluated
    before, after = (map_scores(lambda values: values[who], scores) for scores in (result.before, after))
    ids = torch.searchsorted(who, cohort[torch.isin(cohort, who)])  # participants' positions among the evaluated
    sizes = test_sizes[who]
    held_out = None if validation_sizes is None else validation_sizes[who]
    return {
        "round": result.cohort.round,
        **_of_how_many(who, test_sizes),
        "before": _series(before.accuracy, sizes, ids),
        "after": _series(after.accuracy, sizes, ids),
        "loss_before": _mean(before.loss),
        "loss_after": _mean(after.loss),
        **_metrics("before", before),
        **_metrics("after", after),
        "participants": len(cohort),
        "bytes_down": costs.bytes_down,
        "bytes_up": costs.bytes_up,
        "flops": round(float(costs.flops.mean())) if len(costs.flops) else 0,
        "server_flops": costs.server_flops,
        "seconds": {phase: round(seconds, 4) for phase, seconds in costs.seconds.items()},
        **_preferred(result.info),
        **_numbers(result.info),
        **_validation("validation", before, held_out, ids),
        **_validation("validation_after", after, held_out, ids),
        **_central(before),
        **_triggered(before),
    } | ({"missing": missing} if missing else {})


def _preferred(info: Info) -> dict[str, list[list[int]]]:
    """For every participant the others with the largest positive affinity, best first, by position in the cohort."""
    if "affinity" not in info:
        return {}
    affinity = info["affinity"].clone().fill_diagonal_(0)
    best = affinity.argsort(dim=1, descending=True, stable=True)[:, :PREFERRED]
    pairs = zip(best.tolist(), affinity.gather(1, best).tolist(), strict=True)
    return {"preferred": [[j for j, value in zip(*pair, strict=True) if value > 0] for pair in pairs]}


def _numbers(info: Info) -> dict[str, dict[str, float | None]]:
    """The scalars in the method's report."""
    found = {name: _number(float(value), 6) for name, value in info.items() if value.ndim == 0}
    return {"method": found} if found else {}


def by_reason(missing: Mapping[int, str]) -> dict[str, list[int]]:
    """Reason -> clients whose update was not used."""
    return {why: [client for client, own in missing.items() if own == why] for why in sorted(set(missing.values()))}


def final_line(
    scores: Scores,
    test_sizes: Tensor,
    rounds: int,
    evaluated: Tensor | None = None,
    validation_sizes: Tensor | None = None,
) -> dict[str, Any]:
    """The last line: the final models, from which no round has started.

    scores, test_sizes, validation_sizes: (N,); evaluated: (k,) the clients with scores, None: all.
    """
    who = torch.arange(len(test_sizes)) if evaluated is None else evaluated
    own = map_scores(lambda values: values[who], scores)
    held_out = None if validation_sizes is None else validation_sizes[who]
    return {
        "round": rounds + 1,
        **_of_how_many(who, test_sizes),
        "before": _series(own.accuracy, test_sizes[who], None),
        "loss_before": _mean(own.loss),
        **_metrics("before", own),
        **_validation("validation", own, held_out, None),
        **_central(own),
        **_triggered(own),
    }


def _of_how_many(evaluated: Tensor, clients: Tensor) -> dict[str, int]:
    """The number of evaluated clients, if not all."""
    return {} if len(evaluated) == len(clients) else {"evaluated": len(evaluated)}


def _central(scores: Scores) -> dict[str, Any]:
    """The mean over clients' models of their values on all clients' test samples; a global model's own value."""
    own = scores.central
    return {} if own is None else {"central": {"all": _mean(100 * own.accuracy)}, "loss_central": _mean(own.loss)}


def _triggered(scores: Scores) -> dict[str, Any]:
    """The share of test samples of other classes predicted as the trigger's class, in percent: a mean over clients."""
    own = scores.triggered
    return {} if own is None else {"triggered": {"all": _number(float(100 * own.accuracy.nanmean()), 4)}}


def _validation(name: str, scores: Scores, sizes: Tensor | None, ids: Tensor | None) -> dict[str, Any]:
    """The series on held-out samples, over the clients that have some; empty if nothing is held out."""
    if sizes is None or scores.validation is None:
        return {}
    has = sizes > 0
    own = map_scores(lambda values: values[has], scores.validation)
    place = has.cumsum(0) - 1  # position of a client among those that have some
    taking_part = None if ids is None else place[ids[has[ids]]]
    series = _series(own.accuracy, sizes[has], taking_part)
    return {name: series, f"loss_{name}": _mean(own.loss), **_metrics(name, own)}


def client_line(round: int, before: Scores, after: Scores | None, ids: Tensor | None) -> dict[str, Any]:
    """The line of clients.jsonl: accuracy in percent of every client before, and of the participants after training.

    Losses if targets are not classes; and the run's metrics, name -> values of all clients. "validation" and
    "validation_after" are the same on held-out samples, null for clients without any.
    """
    line: dict[str, Any] = {"round": round, **_of_clients("before", before)}
    if before.validation is not None:
        line |= _of_clients("validation", before.validation)
    if after is not None and ids is not None:
        line |= {"participants": ids.tolist(), **_of_clients("after", after)}
        if after.validation is not None:
            line |= _of_clients("validation_after", after.validation)
    return line


def newcomer_means(served: Served) -> dict[str, Any]:
    """The number of held-out clients and their means, for the last line of metrics.jsonl.

    "accuracy" and "loss" -> "0", "1", "5": epochs; "alone": trained alone for the most epochs.
    """
    return {
        "clients": len(served.names),
        "accuracy": {when: _mean(100 * own.accuracy) for when, own in served.scores.items()},
        "loss": {when: _mean(own.loss) for when, own in served.scores.items()},
    }


def newcomer_scores(served: Served) -> dict[str, Any]:
    """The same for each client, for the last line of clients.jsonl and record.json: lists (h,)."""
    return {
        "names": list(served.names),
        "accuracy": {when: _percent(own.accuracy) for when, own in served.scores.items()},
        "loss": {when: _numbers_of(own.loss) for when, own in served.scores.items()},
        "how": list(served.how),
    }


def _metrics(when: str, scores: Scores) -> dict[str, dict[str, float | None]]:
    """The mean of every metric over the clients for which it is defined; empty if the run has none."""
    means = {name: _number(float(values.nanmean()), 6) for name, values in scores.metrics.items()}
    return {f"metrics_{when}": means} if means else {}


def _of_clients(when: str, scores: Scores) -> dict[str, Any]:
    """Accuracies of single clients, or losses, and metrics."""
    found: dict[str, Any] = {when: _percent(scores.accuracy)}
    if len(scores.accuracy) and not scores.accuracy.isfinite().any():
        found[f"loss_{when}"] = _numbers_of(scores.loss)
    if scores.metrics:
        found[f"metrics_{when}"] = {name: _numbers_of(values) for name, values in scores.metrics.items()}
    return found


def _numbers_of(values: Tensor) -> list[float | None]:
    return [_number(value, 6) for value in values.tolist()]


def _series(accuracy: Tensor, test_sizes: Tensor, ids: Tensor | None) -> dict[str, float | None]:
    values = {"all": _mean(100 * accuracy), "all_weighted": _mean(100 * accuracy, test_sizes)}
    if ids is not None:
        values["participants"] = _mean(100 * accuracy[ids])
        values["participants_weighted"] = _mean(100 * accuracy[ids], test_sizes[ids])
    return values


def _mean(values: Tensor, weights: Tensor | None = None) -> float | None:
    weights = torch.ones_like(values) if weights is None else weights.to(values.dtype)
    return _number(float((values * weights).sum() / weights.sum()), 4)


def _percent(accuracy: Tensor) -> list[float | None]:
    return [_number(100 * value, 2) for value in accuracy.tolist()]


def _number(value: float, digits: int) -> float | None:
    return round(value, digits) if math.isfinite(value) else None
