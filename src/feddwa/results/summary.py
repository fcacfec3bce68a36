"""The summary of a run, from its lines of metrics.jsonl: series by round, and best, last and recent values."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from feddwa.results.metrics import Line

SERIES = ("before", "after", "validation", "validation_after", "central", "triggered")  # series of accuracies in a line
NOTHING = {"best": None, "best_round": None, "last": None, "mean_last_10": None}


def series(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """Accuracies by round: "before.all", ..., "validation.all_weighted", as in the lines of metrics.jsonl."""
    names = {f"{when}.{name}": None for line in lines for when in SERIES for name in line.get(when, {})}
    pairs = {each: each.split(".") for each in names}
    return {
        each: [line[when][name] for line in lines if name in line.get(when, {})] for each, (when, name) in pairs.items()
    }


def evaluated(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines of rounds with an evaluation; all lines if there was none."""
    return [line for line in lines if line.get("evaluated") != 0] or lines


def summarise(lines: Sequence[Line]) -> dict[str, Any]:
    """Best, last and mean of the last ten of every series; first the headline: all clients, unweighted, before
    training.

    `best_round` is the round after which the models were best; 0 = the models before the first round.
    """
    lines = evaluated(lines)
    found = {}
    for name, values in series(lines).items():
        after = int("after." in name)
        found[name] = milestones(values, [line["round"] - 1 + after for line in lines])
    return {**found["before.all"], "series": found}


def summarise_loss(lines: Sequence[Line]) -> dict[str, Any]:
    """The same for the loss before training, mean over all clients; the best is the smallest."""
    lines = evaluated(lines)
    upside_down = milestones([_minus(line["loss_before"]) for line in lines], [line["round"] - 1 for line in lines])
    return {key: value if key == "best_round" else _minus(value) for key, value in upside_down.items()}


def validation_score(line: Line) -> float | None:
    """The score by which models are chosen, larger is better: validation accuracy, or the negative loss without one.

    Mean over clients, unweighted, of the models before the line's round.
    """
    accuracy = line.get("validation", {}).get("all")
    return accuracy if accuracy is not None else _minus(line.get("loss_validation"))


def summarise_validation(lines: Sequence[Line]) -> dict[str, Any]:
    """Best, last and mean of the last ten on held-out data, by accuracy, or by loss if there is none.

    "test_at_best": the test accuracy (loss) of all clients after the round that validation data would choose. Unlike
    the best test accuracy, it is not selected on test data.
    """
    by_accuracy = any(line.get("validation", {}).get("all") is not None for line in lines)
    tried = evaluated(lines)
    told = milestones([validation_score(line) for line in tried], [line["round"] - 1 for line in tried])
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
    """For every metric, before training: the last, the mean of the last ten, and the highest and lowest of all rounds.

    Which of these is best depends on the metric.
    """
    lines = evaluated(lines)
    found = {}
    for name, own in metric_series(lines).items():
        rounds = [line["round"] - 1 for line in lines]
        told, known = milestones(own["before"], rounds), [value for value in own["before"] if value is not None]
        extremes = {"highest": max(known, default=None), "lowest": min(known, default=None)}
        found[name] = {"last": told["last"], "mean_last_10": told["mean_last_10"], **extremes}
    return found


def summary(names: Line, lines: Sequence[Line], device: torch.device) -> dict[str, Any]:
    """The summary of a run; names: its first entries."""
    rounds = [line for line in lines if "participants" in line]
    costs = {f"{name}_per_client_round": name for name in ("bytes_up", "bytes_down", "flops")}
    costs["server_flops_per_round"] = "server_flops"
    return {
        **names,
        "accuracy": summarise(lines),
        "loss": summarise_loss(lines),
        **({"validation": summarise_validation(lines)} if "validation" in lines[0] else {}),
        **({"metrics": found} if (found := summarise_metrics(lines)) else {}),
        **({"newcomers": lines[-1]["newcomers"]} if "newcomers" in lines[-1] else {}),
        "missing": summarise_missing(lines),
        **{key: round(sum(line[name] for line in rounds) / max(1, len(rounds))) for key, name in costs.items()},
        "seconds": round(sum(map(seconds_of, rounds)), 2),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def seconds_of(line: Line) -> float:
    """The time of a round, all phases together; set-up and writing do not count. Runs in lockstep share it."""
    return float(sum(line["seconds"].values()))


def summarise_missing(lines: Sequence[Line]) -> dict[str, int]:
    """Number of unused updates, by reason, over all rounds."""
    return dict(Counter(why for line in lines for why, clients in line.get("missing", {}).items() for _ in clients))


def milestones(values: Sequence[float | None], rounds: Sequence[int]) -> dict[str, Any]:
    """The highest value and the first round that has it, the last, the mean of the last ten.

    rounds: after which each value was measured; 0 = before the first round.
    """
    known = [(number, value) for number, value in zip(rounds, values, strict=False) if value is not None]
    if not known:
        return NOTHING
    best_round, best = max(known, key=lambda pair: (pair[1], -pair[0]))
    complete = [value for value in values[-10:] if value is not None]
    mean = round(sum(complete) / len(complete), 4) if len(complete) == len(values[-10:]) else None
    return {"best": best, "best_round": best_round, "last": values[-1], "mean_last_10": mean}


def _minus(value: float | None) -> float | None:
    return None if value is None else -value
