"""Accuracies that say what they are: which clients, which weighting, before or after training, best or last round.

Where outputs are not class scores there is no accuracy, and a model that has diverged has no loss: such a number is
None here and null in the files.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddwa.algorithms import Info
from feddwa.engine import Scores, map_scores
from feddwa.federation import Round

Line = Mapping[str, Any]
PREFERRED = 4  # other clients whose affinity is kept: with the client itself the five that the paper's figure shows
SERIES = ("before", "after", "validation", "validation_after")  # of accuracies, in a line
NOTHING = {"best": None, "best_round": None, "last": None, "mean_last_10": None}


def round_line(
    result: Round, test_sizes: Tensor, honest: Tensor | None = None, validation_sizes: Tensor | None = None
) -> dict[str, Any]:
    """The line of metrics.jsonl for a round. Accuracies are percent; all times stand under "seconds".

    "before" = the personalised models that the round starts from, "after" = after local training, where clients that
    take no part keep their model. "weighted" = by test samples, that is, the share of all samples answered rightly;
    "participants_weighted" is what the paper's code logs. Losses are means over all clients, too. Participants are the
    clients whose updates count; "missing" has the others, by reason. "honest" are all clients but the attackers.
    "metrics_before" and "metrics_after" have the run's metrics, means over the clients for which they are defined.
    "validation" and "validation_after" are as "before" and "after" on held-out training data, of the clients that have
    some; `validation_sizes`: (N,) how many, None where nothing is held out.
    "preferred", where the method learns an affinity, has those with the largest one of every participant; "method" has
    the method's own numbers of the round.
    """
    ids, costs = result.cohort.ids, result.costs
    after = map_scores(lambda old, new: old.index_copy(0, ids, new), result.before, result.after)
    missing = by_reason(result.missing)
    return {
        "round": result.cohort.round,
        "before": _series(result.before.accuracy, test_sizes, ids, honest),
        "after": _series(after.accuracy, test_sizes, ids, honest),
        "loss_before": _mean(result.before.loss),
        "loss_after": _mean(after.loss),
        **_metrics("before", result.before),
        **_metrics("after", after),
        "participants": len(ids),
        "bytes_down": costs.bytes_down,
        "bytes_up": costs.bytes_up,
        "flops": round(float(costs.flops.mean())) if len(costs.flops) else 0,
        "server_flops": costs.server_flops,
        "seconds": {phase: round(seconds, 4) for phase, seconds in costs.seconds.items()},
        **_preferred(result.info),
        **_numbers(result.info),
        **_validation("validation", result.before, validation_sizes, ids, honest),
        **_validation("validation_after", after, validation_sizes, ids, honest),
    } | ({"missing": missing} if missing else {})


def _preferred(info: Info) -> dict[str, list[list[int]]]:
    """Of every participant the others of largest positive affinity, best first, by their place in the cohort."""
    if "affinity" not in info:
        return {}
    affinity = info["affinity"].clone().fill_diagonal_(0)
    best = affinity.argsort(dim=1, descending=True, stable=True)[:, :PREFERRED]
    pairs = zip(best.tolist(), affinity.gather(1, best).tolist(), strict=True)
    return {"preferred": [[j for j, value in zip(*pair, strict=True) if value > 0] for pair in pairs]}


def _numbers(info: Info) -> dict[str, dict[str, float | None]]:
    """What of the method's report is a single number."""
    found = {name: _number(float(value), 6) for name, value in info.items() if value.ndim == 0}
    return {"method": found} if found else {}


def by_reason(missing: Mapping[int, str]) -> dict[str, list[int]]:
    """Why updates do not count, and whose."""
    return {why: [client for client, own in missing.items() if own == why] for why in sorted(set(missing.values()))}


def final_line(
    scores: Scores,
    test_sizes: Tensor,
    rounds: int,
    honest: Tensor | None = None,
    validation_sizes: Tensor | None = None,
) -> dict[str, Any]:
    """The last line: the models that the run delivers, which no round has started from."""
    return {
        "round": rounds + 1,
        "before": _series(scores.accuracy, test_sizes, None, honest),
        "loss_before": _mean(scores.loss),
        **_metrics("before", scores),
        **_validation("validation", scores, validation_sizes, None, honest),
    }


def _validation(
    name: str, scores: Scores, sizes: Tensor | None, ids: Tensor | None, honest: Tensor | None
) -> dict[str, Any]:
    """The series of held-out samples, over the clients that have some; nothing where nothing is held out."""
    if sizes is None or scores.validation is None:
        return {}
    has = sizes > 0
    own = map_scores(lambda values: values[has], scores.validation)
    place = has.cumsum(0) - 1  # of a client among those that have some
    taking_part = None if ids is None else place[ids[has[ids]]]
    series = _series(own.accuracy, sizes[has], taking_part, None if honest is None else honest[has])
    return {name: series, f"loss_{name}": _mean(own.loss), **_metrics(name, own)}


def client_line(round: int, before: Scores, after: Scores | None, ids: Tensor | None) -> dict[str, Any]:
    """The line of clients.jsonl: percent right of every client before, and of the participants after training.

    Where targets are not classes it has losses; and it has the run's metrics, name -> of every client. "validation" and
    "validation_after" are the same on held-out samples, null of clients that have none.
    """
    line: dict[str, Any] = {"round": round, **_of_clients("before", before)}
    if before.validation is not None:
        line |= _of_clients("validation", before.validation)
    if after is not None and ids is not None:
        line |= {"participants": ids.tolist(), **_of_clients("after", after)}
        if after.validation is not None:
            line |= _of_clients("validation_after", after.validation)
    return line


def _metrics(when: str, scores: Scores) -> dict[str, dict[str, float | None]]:
    """The mean of every metric over the clients for which it is defined; nothing where the run has none."""
    means = {name: _number(float(values.nanmean()), 6) for name, values in scores.metrics.items()}
    return {f"metrics_{when}": means} if means else {}


def _of_clients(when: str, scores: Scores) -> dict[str, Any]:
    """Accuracies of single clients, losses where there are none, and metrics."""
    found: dict[str, Any] = {when: _percent(scores.accuracy)}
    if len(scores.accuracy) and not scores.accuracy.isfinite().any():
        found[f"loss_{when}"] = _numbers_of(scores.loss)
    if scores.metrics:
        found[f"metrics_{when}"] = {name: _numbers_of(values) for name, values in scores.metrics.items()}
    return found


def _numbers_of(values: Tensor) -> list[float | None]:
    return [_number(value, 6) for value in values.tolist()]


def series(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """Accuracies by round: "before.all", ..., "validation.all_weighted", as in the lines of metrics.jsonl."""
    names = {f"{when}.{name}": None for line in lines for when in SERIES for name in line.get(when, {})}
    pairs = {each: each.split(".") for each in names}
    return {
        each: [line[when][name] for line in lines if name in line.get(when, {})] for each, (when, name) in pairs.items()
    }


def summarise(lines: Sequence[Line]) -> dict[str, Any]:
    """Best, last and mean of the last ten of every series; on top the headline: all clients, unweighted, before.

    `best_round` is the round after which the models were best; 0 = the models before the first round.
    """
    found = {name: milestones(values, int("after." in name)) for name, values in series(lines).items()}
    return {**found["before.all"], "series": found}


def summarise_loss(lines: Sequence[Line]) -> dict[str, Any]:
    """The same of the loss before training, mean over all clients; the best is the smallest."""
    upside_down = milestones([_minus(line["loss_before"]) for line in lines])
    return {key: value if key == "best_round" else _minus(value) for key, value in upside_down.items()}


def validation_score(line: Line) -> float | None:
    """What models are chosen by, the larger the better: accuracy on held-out data, or less their loss without one.

    Mean over clients, unweighted, of the models from before the line's round.
    """
    accuracy = line.get("validation", {}).get("all")
    return accuracy if accuracy is not None else _minus(line.get("loss_validation"))


def summarise_validation(lines: Sequence[Line]) -> dict[str, Any]:
    """Best, last and mean of the last ten on held-out data, by accuracy, or by loss where there is none.

    "test_at_best": the test accuracy (loss) of all clients after the round that validation data would choose, which,
    other than the best test accuracy, nobody has looked for among the test data.
    """
    by_accuracy = any(line.get("validation", {}).get("all") is not None for line in lines)
    told = milestones([validation_score(line) for line in lines])
    if not by_accuracy:
        told = {key: value if key == "best_round" else _minus(value) for key, value in told.items()}
    best = None if told["best_round"] is None else lines[told["best_round"]]
    test = None if best is None else best["before"]["all"] if by_accuracy else best["loss_before"]
    return {"measure": "accuracy" if by_accuracy else "loss", **told, "test_at_best": test}


def metric_series(lines: Sequence[Line]) -> dict[str, dict[str, list[float | None]]]:
    """Metric -> "before" and "after" training -> its mean over clients, by round."""
    names = lines[0].get("metrics_before", {})
    return {
        name: {
            when: [line[f"metrics_{when}"][name] for line in lines if f"metrics_{when}" in line]
            for when in ("before", "after")
        }
        for name in names
    }


def summarise_metrics(lines: Sequence[Line]) -> dict[str, dict[str, float | None]]:
    """Of every metric, before training: the last, the mean of the last ten, and the highest and lowest of all rounds.

    Which of these is the best is the metric's own affair.
    """
    found = {}
    for name, own in metric_series(lines).items():
        told, known = milestones(own["before"]), [value for value in own["before"] if value is not None]
        extremes = {"highest": max(known, default=None), "lowest": min(known, default=None)}
        found[name] = {"last": told["last"], "mean_last_10": told["mean_last_10"], **extremes}
    return found


def summary(names: Line, lines: Sequence[Line], seconds: float, device: torch.device) -> dict[str, Any]:
    """What a run came to, for people; names: what stands before it."""
    rounds = [line for line in lines if "participants" in line]
    costs = {f"{name}_per_client_round": name for name in ("bytes_up", "bytes_down", "flops")}
    costs["server_flops_per_round"] = "server_flops"
    return {
        **names,
        "accuracy": summarise(lines),
        "loss": summarise_loss(lines),
        **({"validation": summarise_validation(lines)} if "validation" in lines[0] else {}),
        **({"metrics": found} if (found := summarise_metrics(lines)) else {}),
        "missing": summarise_missing(lines),
        **{key: round(sum(line[name] for line in rounds) / len(rounds)) for key, name in costs.items()},
        "seconds": round(seconds, 2),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def summarise_missing(lines: Sequence[Line]) -> dict[str, int]:
    """How many updates did not count, by reason, over all rounds."""
    return dict(Counter(why for line in lines for why, clients in line.get("missing", {}).items() for _ in clients))


def milestones(values: Sequence[float | None], first: int = 0) -> dict[str, Any]:
    """The highest value and the first round that has it, the last, the mean of the last ten.

    first: the round after which the first value was measured; 0 = before the first round.
    """
    known = [(number, value) for number, value in enumerate(values, first) if value is not None]
    if not known:
        return NOTHING
    best_round, best = max(known, key=lambda pair: (pair[1], -pair[0]))
    complete = [value for value in values[-10:] if value is not None]
    mean = round(sum(complete) / len(complete), 4) if len(complete) == len(values[-10:]) else None
    return {"best": best, "best_round": best_round, "last": values[-1], "mean_last_10": mean}


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def _series(
    accuracy: Tensor, test_sizes: Tensor, ids: Tensor | None, honest: Tensor | None = None
) -> dict[str, float | None]:
    values = {"all": _mean(100 * accuracy), "all_weighted": _mean(100 * accuracy, test_sizes)}
    if honest is not None:
        values["honest"] = _mean(100 * accuracy[honest])
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
