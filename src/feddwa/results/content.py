"""record.json, the one record of a finished run; a line of a JSONL file of published results has the same keys.

version     of this form
cell        what was run, as a name: dataset-partition-clients-algorithm-hash; seeds apart, equal cells are equal runs
seed
config      the resolved configuration
made        commit, dirty, hardware, versions
costs       bytes_down, bytes_up, flops: of a participating client in a round, mean over rounds; server_flops: of a
            round; seconds: of the whole run, its share where runs shared the device
series      accuracies in percent by round: "before.all" (one longer: the models that the run delivers),
            "before.participants_weighted" (the paper's metric), "validation.all" on held-out training data, ...: see
            `metrics.round_line`
clients     every client's accuracy at the end, in percent; null where targets are not classes
stopped     where --early-stop has ended the run: "round" after which, "best_round" by validation, "why" in words
metrics     where the run has any: name -> "before" and "after" training -> mean over clients, by round
findings    what went wrong: (level, text)
newcomers   where --holdout-clients holds clients out: "names" and "how" each is served, and its "accuracy" and "loss"
            after "0", "1" and "5" epochs of its training data, and after the most "alone" (feddwa.trained.newcomers)
groups      (N,) the true group of each client, where there are any
in_group    by round, where there are groups: "weight" = share of the weight inside a client's group, "partners" =
            share of its top-5 partners inside; "partners_by_affinity" = the same by a learned affinity (FedFomo)
fairness    in record.json only, where clients have accuracies: the mean of the worst tenth, the standard deviation
summary     for people, in record.json only: best, last and mean of the last ten of every series
weights     in published results only, where a figure needs them: round -> P (N, N) in thousandths
preferred   beside it: round -> of every client the others of largest affinity, best first
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from feddwa.config import WHERE_AND_HOW, RunConfig, options_of
from feddwa.options.robustness import NO_DEFENCE
from feddwa.plugins import label
from feddwa.results.collaboration import group_weight, partner_share, rank_matrix
from feddwa.results.fairness import fairness
from feddwa.results.findings import Finding
from feddwa.results.metrics import Line
from feddwa.results.summary import metric_series, series
from feddwa.results.weights import Weights

VERSION = 1
PUBLISHED = ("before.all", "before.participants_weighted", "after.participants_weighted")  # what tables are made of
_IN_NAMES = ("algorithm", "dataset", "model", "partition", "clients", "rounds", "batch_size", "lr", "param")

Content = dict[str, Any]  # of record.json


def settings(config: RunConfig) -> dict[str, Any]:
    """All settings that a result depends on, as JSON; without seed, rounding, None and ()."""
    found = options_of(config.resolved(), leaving_out=(*WHERE_AND_HOW, "seed", "dtype"))
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}
    return {**{key: value for key, value in plain.items() if value not in (None, [])}, "param": sorted(found["param"])}


def cell_name(config: RunConfig) -> str:
    """dataset-partition-clients-algorithm-hash: the same for the same settings, on any machine.

    The hash covers settings that are not defaults, so that a later hyper-parameter with a neutral default does not
    change the names of results.
    """
    values, usual = settings(config), {**dataclasses.asdict(RunConfig()), "defence": NO_DEFENCE}
    defaults = dataclasses.replace(config, partition=config.partition or config.usual_partition).usual_parameters()
    values["param"] = [entry for entry in values["param"] if entry not in defaults]
    told = {key: value for key, value in values.items() if key in _IN_NAMES or value != usual[key]}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
    dataset, partition, algorithm = (label(values[key]) for key in ("dataset", "partition", "algorithm"))
    return f"{dataset}-{partition}-{values['clients']}-{algorithm}-{digest}"


def agrees(stored: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    """Whether every setting of a result is unchanged; options and hyper-parameters added since are ignored."""
    free = {*WHERE_AND_HOW, "seed", "dtype", "param"}
    same = all(present.get(key) == value for key, value in stored.items() if key not in free)
    return same and set(stored["param"]) <= set(present["param"])


def make(
    config: RunConfig,
    lines: Sequence[Line],
    clients: Sequence[float | None],
    weights: Iterable[Weights],
    groups: np.ndarray | None,
    findings: Iterable[Finding],
    summary: Mapping[str, Any],
    made: Mapping[str, Any],
    newcomers: Mapping[str, Any] | None = None,
) -> Content:
    """The content of record.json.

    lines: of metrics.jsonl; clients: the last line of clients.jsonl; weights: of all rounds; groups: (N,);
    newcomers: of the last line of clients.jsonl.
    """
    costs = {name: summary[f"{name}_per_client_round"] for name in ("bytes_down", "bytes_up", "flops")}
    costs["server_flops"] = summary["server_flops_per_round"]
    costs["seconds"] = round(summary["seconds"] / summary.get("lockstep", 1), 2)
    content = {
        "version": VERSION,
        "cell": cell_name(config),
        "seed": config.seed,
        "config": options_of(config, leaving_out=("out",)),
        "made": dict(made),
        "costs": costs,
        "series": series(lines),
        "clients": list(clients),
        "findings": [list(finding) for finding in findings],
        **_fairness(clients),
        "summary": dict(summary),
    }
    if "stopped" in summary:
        content["stopped"] = summary["stopped"]
    if newcomers is not None:
        content["newcomers"] = dict(newcomers)
    if measured := metric_series(lines):
        content["metrics"] = measured
    if groups is not None:
        content["groups"], content["in_group"] = groups.tolist(), _in_group(lines, weights, groups)
    return content


def _fairness(clients: Sequence[float | None]) -> dict[str, Any]:
    """The worst tenth's mean and the standard deviation of the clients' accuracies, in percent."""
    found = fairness(np.array(clients, dtype=float))
    return {} if found is None else {"fairness": {"worst_tenth": found.worst_tenth, "std": found.std}}


def _in_group(lines: Sequence[Line], weights: Iterable[Weights], groups: np.ndarray) -> dict[str, list[float]]:
    """Per round: the share of a client's weight, and of its top partners, inside its group."""
    preferred = {line["round"]: rank_matrix(line["preferred"]) for line in lines if "preferred" in line}
    found: dict[str, list[float]] = {"weight": [], "partners": []}
    for each in weights:
        own = groups[each.cohort]
        found["weight"].append(round(group_weight(each.matrix, own), 4))
        found["partners"].append(round(partner_share(each.matrix, own), 4))
        if each.round in preferred:
            share = round(partner_share(preferred[each.round], own), 4)
            found.setdefault("partners_by_affinity", []).append(share)
    return found


def published(
    content: Mapping[str, Any],
    config: RunConfig,
    weights: Sequence[Weights] = (),
    lines: Sequence[Line] = (),
    further: str = "",
) -> Content:
    """The published part of a record: settings, the series of tables, and `weights` of some rounds.

    lines: of metrics.jsonl, for the affinities of these rounds; further: an additional series to publish.
    """
    found = {key: value for key, value in content.items() if key not in ("fairness", "summary")}
    found["config"] = {**settings(config), "dtype": config.dtype}
    found["series"] = {name: content["series"][name] for name in dict.fromkeys([*PUBLISHED, further]) if name}
    if weights:
        thousandths = {str(each.round): in_thousandths(each, len(content["clients"])) for each in weights}
        preferred = {str(line["round"]): line["preferred"] for line in lines if "preferred" in line}
        found["weights"] = thousandths
        found |= {"preferred": {key: preferred[key] for key in thousandths}} if preferred else {}
    return found


def in_thousandths(weights: Weights, clients: int) -> list[list[int]]:
    """P as an (N, N) matrix; a client whose update did not count in that round has a row and a column of zeros."""
    matrix = np.zeros((clients, clients), dtype=int)
    matrix[np.ix_(weights.cohort, weights.cohort)] = np.rint(1000 * weights.matrix)
    return matrix.tolist()


def from_thousandths(round: int, rows: Sequence[Sequence[int]]) -> Weights:
    """The inverse of `in_thousandths`: clients whose row is zero did not take part."""
    matrix = np.array(rows, dtype=float) / 1000
    cohort = np.flatnonzero(matrix.any(axis=1))
    return Weights(round, cohort, matrix[np.ix_(cohort, cohort)])


def expand(content: Mapping[str, Any], participants: int) -> list[dict[str, Any]]:
    """Lines as in metrics.jsonl from a record without such a file; costs are the rounds' mean.

    participants: of a round.
    """
    costs, rounds = dict(content["costs"]), len(content["series"]["before.all"]) - 1
    seconds = {"round": costs.pop("seconds") / rounds}
    lines: list[dict[str, Any]] = [
        {"round": number + 1, "participants": participants, "seconds": seconds, **costs} for number in range(rounds)
    ]
    lines.append({"round": rounds + 1})
    for name, values in content["series"].items():
        when, _, key = name.partition(".")
        for line, value in zip(lines, values, strict=False):
            line.setdefault(when, {})[key] = value
    return lines


def to_text(content: Content) -> str:
    """One key per line with its value, compact and readable."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
