"""Validation of the files of a run directory: each is checked when it is read, and damage gives a one-line error.

A file may be cut, changed or written by another program. Readers of a run rely only on these checks, so a damaged
directory always gives one line that names the file.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from feddwa.data.describe import Description, from_json
from feddwa.errors import InputError

LARGEST = 1e300  # largest number in a file; larger ones may overflow a float
LARGEST_WEIGHT = 1e30  # largest entry of P; no useful run exceeds it
LEVELS = ("ok", "note", "warning", "error")  # of findings
OF_MODELS = ("before.", "validation.", "central.", "triggered.")  # series with one more value: that of the final models
COSTS = ("bytes_down", "bytes_up", "flops")  # per round and participating client


def damaged(path: Path, what: object) -> InputError:
    """The error for a damaged file."""
    words = " ".join(str(what).split())[:200]
    return InputError(f"{path}: is damaged: {words}")


def parse(path: Path, text: str | bytes, where: str = "it") -> Any:
    """JSON without NaN and infinity, which no file of a run contains."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise damaged(path, f"{where} is not JSON") from None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def contents(path: Path) -> bytes | None:
    """The bytes of a file; None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def read_lines(path: Path, whole: bool = False) -> list[Any]:
    """The lines of a file, as JSON.

    An incomplete last line is ignored; with `whole` it is damage, as is a missing file.
    """
    text = contents(path)
    *texts, rest = (text or b"").split(b"\n")
    if whole and (text is None or rest):
        raise damaged(path, "its last line is cut off" if rest else "it is missing")
    return [parse(path, each, f"line {number}") for number, each in enumerate(texts, 1)]


def check_metrics(path: Path, lines: Sequence[Any]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, if they are those of rounds 1, 2, ...; the last may be about the final models."""
    for number, line in enumerate(lines, 1):
        where = f"line {number}"
        _expect(isinstance(line, dict) and _is_round(line, number), path, f"{where} is not that of round {number}")
        _expect(_is_series(line.get("before")), path, f"{where} lacks the accuracies before the round")
        _expect(_is_loss(line.get("loss_before", "none")), path, f"{where} lacks the loss before the round")
        last = number == len(lines) and "participants" not in line
        _expect(last or _has_costs(line), path, f"{where} lacks participants or what they sent, computed or took")
        _expect(_is_metrics(line.get("metrics_before", {})), path, f"{where}: a metric is no number")
        _expect("after" not in line or _is_series(line["after"]), path, f"{where} has no accuracies after training")
        central = line.get("central", {"all": None})
        valid = isinstance(central, dict) and "all" in central and all(map(_percent, central.values()))
        _expect(valid and _is_loss(line.get("loss_central")), path, f"{where} has no accuracy of all test data")
        for when in ("validation", "validation_after"):
            valid = when not in line or (_is_series(line[when]) and _is_loss(line.get(f"loss_{when}", "none")))
            _expect(valid, path, f"{where} has no accuracies or no loss on {when.replace('_', ' ')}")
        _expect(_is_missing(line.get("missing", {})), path, f"{where} does not tell whose updates are missing")
        _expect(_whole(line.get("evaluated", 0)), path, f"{where} does not tell how many clients were evaluated")
    return list(lines)


def check_clients(path: Path, lines: Sequence[Any]) -> list[list[float | None]]:
    """The accuracies before each round in the lines of clients.jsonl: percent, None if missing.

    Losses if targets are not classes.
    """
    losses = bool(lines) and isinstance(lines[0], dict) and "loss_before" in lines[0]
    for number, line in enumerate(lines, 1):
        where = f"line {number}"
        _expect(isinstance(line, dict) and _is_round(line, number), path, f"{where} is not that of round {number}")
        known = isinstance(line.get("before"), list) and all(map(_percent, line["before"]))
        _expect(known, path, f"{where} lacks some client's accuracy")
        own = line.get("loss_before", [] if not line["before"] else None) if losses else line["before"]
        told = isinstance(own, list) and len(own) == len(line["before"])
        _expect(told and all(each is None or _number(each) for each in own), path, f"{where} lacks some client's loss")
    return [line.get("loss_before" if losses else "before", []) for line in lines]


def check_record(path: Path, content: Any, where: str = "it") -> dict[str, Any]:
    """The content of record.json, or of a line of published results, if it is the record of a run."""
    known = isinstance(content, dict) and isinstance(content.get("config"), dict)
    _expect(known, path, f"{where} is not the record of a run")
    version = content.get("version")
    _expect(version == 1, path, f"{where} is a record of version {version}, this feddwa reads version 1")
    for name, kind in (("cell", str), ("made", dict), ("costs", dict), ("series", dict), ("clients", list)):
        _expect(isinstance(content.get(name), kind), path, f"{where} lacks {name}")
    _expect(_whole(content.get("seed")), path, f"{where}: seed is no whole number")
    for name in (*COSTS, "seconds"):
        _expect(_amount(content["costs"].get(name)), path, f"{where}: costs.{name} is no number")
    series = content["series"]
    lists = all(isinstance(values, list) and all(map(_percent, values)) for values in series.values())
    _expect(lists and len(series.get("before.all", ())) > 1, path, f"{where}: series is not one of accuracies")
    lengths = {
        len(values) - (name.startswith(OF_MODELS) and "participants" not in name) for name, values in series.items()
    }
    _expect(len(lengths) == 1, path, f"{where}: series are not of the same rounds")
    _expect(all(map(_percent, content["clients"])), path, f"{where}: clients are not accuracies")
    _expect(_is_findings(content.get("findings", [])), path, f"{where}: findings are not pairs of level and text")
    _check_groups(path, content, where)
    fair = content.get("fairness", {})
    _expect(isinstance(fair, dict) and all(map(_number, fair.values())), path, f"{where}: fairness has no numbers")
    _expect("newcomers" not in content or _is_newcomers(content["newcomers"]), path, f"{where}: newcomers lack scores")
    _expect(_is_stop(content.get("stopped")), path, f"{where} does not tell after which round it was stopped, and why")
    summary = content.get("summary", {})
    _expect(isinstance(summary, dict), path, f"{where}: summary is none")
    _expect(_whole(summary.get("lockstep", 1), 1), path, f"{where}: summary.lockstep is no number of runs")
    return dict(content)


def _check_groups(path: Path, content: Mapping[str, Any], where: str) -> None:
    """Check a record's groups and weights."""
    clients, groups = len(content["clients"]), content.get("groups")
    known = groups is None or (isinstance(groups, list) and all(map(_whole, groups)) and len(groups) == clients)
    _expect(known, path, f"{where}: groups are not those of {clients} clients")
    inside = content.get("in_group", {})
    shares = isinstance(inside, dict) and all(
        isinstance(each, list) and all(map(_number, each)) for each in inside.values()
    )
    _expect(shares, path, f"{where}: in_group has no shares by round")
    for name in ("weights", "preferred"):
        kept = content.get(name, {})
        _expect(isinstance(kept, dict) and all(map(str.isdecimal, kept)), path, f"{where}: {name} are not by round")
    for number, matrix in content.get("weights", {}).items():
        square = isinstance(matrix, list) and all(isinstance(row, list) and len(row) == len(matrix) for row in matrix)
        sound = square and len(matrix) == clients and all(_number(each) for row in matrix for each in row)
        _expect(sound, path, f"{where}: the weights of round {number} are not those between {clients} clients")
    for number, lists in content.get("preferred", {}).items():
        sound = isinstance(lists, list) and all(isinstance(own, list) for own in lists) and len(lists) == clients
        sound = sound and all(_whole(each) and each < clients for own in lists for each in own)
        _expect(sound, path, f"{where}: the preferences of round {number} are not those of {clients} clients")


def _is_newcomers(found: Any) -> bool:
    """Whether every held-out client has a name, the rule behind its model, and scores after the same epochs."""
    kinds = {"names": list, "how": list, "accuracy": dict, "loss": dict}
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in kinds.items()):
        return False
    words, percents, losses = [found["names"], found["how"]], found["accuracy"], found["loss"]
    lists = [*words, *percents.values(), *losses.values()]
    if not all(isinstance(own, list) and len(own) == len(words[0]) > 0 for own in lists):
        return False
    told = all(isinstance(each, str) for own in words for each in own)
    scored = all(map(_percent, chain(*percents.values()))) and all(map(_is_loss, chain(*losses.values())))
    return told and scored and percents.keys() == losses.keys()


def _is_stop(value: Any) -> bool:
    rounds = value is None or (isinstance(value, dict) and all(_whole(value.get(k)) for k in ("round", "best_round")))
    return rounds and (value is None or isinstance(value.get("why"), str))


def _is_findings(values: Any) -> bool:
    pairs = isinstance(values, list) and all(isinstance(each, list) and len(each) == 2 for each in values)
    return pairs and all(level in LEVELS and isinstance(text, str) for level, text in values)


def read_partition(path: Path) -> Description | None:
    """The partition in partition.json; None if the file does not exist."""
    text = contents(path)
    if text is None:
        return None
    values = parse(path, text)
    try:
        found = from_json(values)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise damaged(path, "not the description of a partition") from None
    both = (found.train_counts, found.test_counts)
    _expect(all(_counts(each) and each.ndim == 2 for each in both), path, "it does not count samples by class")
    shape = found.train_counts.shape
    _expect(shape == found.test_counts.shape, path, "training and test samples are not of the same clients and classes")
    names = found.class_names
    _expect(len(names) == shape[1] and all(isinstance(name, str) for name in names), path, "not every class has a name")
    clients = found.client_names
    _expect(
        not clients or (len(clients) == shape[0] and all(isinstance(name, str) for name in clients)),
        path,
        "not every client has a name",
    )
    _expect(all(isinstance(name, str) for name in found.newcomers), path, "not every held-out client has a name")
    empty = any((each.sum(axis=1) == 0).any() for each in both)
    _expect(not empty, path, "a client has no samples to train or to test with")
    for name, own in (("groups", shape[:1]), ("turns", shape[:1]), ("relabel", shape)):
        value = getattr(found, name)
        _expect(value is None or (_counts(value) and value.shape == own), path, f"{name} is not one of these clients")
    return found


def check_weights(path: Path, number: int, cohort: np.ndarray, matrix: np.ndarray, clients: int | None = None) -> None:
    """Check that cohort (m,) and P (m, m) of a round agree, for `clients` in total if known."""
    several = cohort.ndim == 1 and cohort.dtype.kind in "iu" and len(np.unique(cohort)) == len(cohort) > 0
    known = several and cohort.min() >= 0 and (clients is None or cohort.max() < clients)
    _expect(bool(known), path, f"the cohort of round {number} is not one of this run's clients")
    square = matrix.shape == (len(cohort), len(cohort)) and matrix.dtype.kind == "f"
    sound = square and bool((np.abs(matrix) <= LARGEST_WEIGHT).all())
    _expect(sound, path, f"the weights of round {number} are not finite numbers between its clients")


def _expect(condition: bool, path: Path, what: str) -> None:
    if not condition:
        raise damaged(path, what)


def _number(value: Any, low: float = -LARGEST, high: float = LARGEST) -> bool:
    """Whether a value is a number within bounds; NaN, true and false are not."""
    return type(value) in (int, float) and low <= value <= high


def _amount(value: Any) -> bool:
    return _number(value, 0)


def _whole(value: Any, low: int = 0) -> bool:
    return type(value) is int and _number(value, low)


def _percent(value: Any) -> bool:
    return value is None or _number(value, 0, 100)


def _is_round(line: Mapping[str, Any], number: int) -> bool:
    return _whole(line.get("round")) and line["round"] == number


def _is_series(values: Any) -> bool:
    known = isinstance(values, dict) and {"all", "all_weighted"} <= values.keys()
    return known and all(map(_percent, values.values()))


def _is_loss(value: Any) -> bool:
    return value is None or _number(value)


def _is_metrics(values: Any) -> bool:
    return isinstance(values, dict) and all(value is None or _number(value) for value in values.values())


def _has_costs(line: Mapping[str, Any]) -> bool:
    seconds = line.get("seconds")
    timed = isinstance(seconds, dict) and all(map(_amount, seconds.values()))
    return timed and _whole(line.get("participants")) and all(_amount(line.get(cost)) for cost in COSTS)


def _is_missing(values: Any) -> bool:
    known = isinstance(values, dict) and all(isinstance(clients, list) for clients in values.values())
    return known and all(_whole(client) for clients in values.values() for client in clients)


def _counts(values: Any) -> bool:
    """Whether these are non-negative integers whose sums cannot overflow."""
    known = isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.size > 0
    return known and bool((values >= 0).all() and (values < 2**40).all())
