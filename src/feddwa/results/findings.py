"""Failures and warnings of a run, from the lines of metrics.jsonl and the clients' test data: the most serious first.

They are shown in the report's headline, above the terminal's table and by `feddwa doctor`. An "error" means that the
run's accuracy says nothing about its method: it gets no gain over Local and no rank.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from feddwa.data.describe import Description
from feddwa.results.metrics import Line
from feddwa.results.summary import summarise_missing
from feddwa.updates import ABSENT, DIVERGED, INVALID, LATE, OFFLINE, OVERSIZED

Level = Literal["ok", "note", "warning", "error"]

SEVERITY: tuple[Level, ...] = ("error", "warning", "note", "ok")
GROWTH = 1.2  # multiple of the initial loss at which training without effect on accuracy counts as diverged
STANDARD_ERRORS = 2.0  # accuracies closer to that of guessing are indistinguishable from it
ADVICE = {
    DIVERGED: "lower --lr",
    OVERSIZED: "look at those clients, whose updates are more than a hundred times as long as the others'",
    INVALID: "let every client train the same network",
    ABSENT: "lower --fault dropout",
    LATE: "give clients more time (--deadline over Flower), or lower --fault straggler",
    OFFLINE: "bring their nodes back online",
}


class Finding(NamedTuple):
    """One check and its result."""

    level: Level
    text: str


def went_wrong(
    lines: Sequence[Line],
    test_counts: np.ndarray | None = None,
    finished: bool = True,
    name: Callable[[int], str] = str,
) -> list[Finding]:
    """All failures and warnings of a run, the most serious first; empty if there are none.

    `lines`: of metrics.jsonl, from round 1 on. `test_counts`: (N, C) test samples of every client by class; None if
    unknown, which skips the comparison with guessing. For an unfinished run, an accuracy at the level of guessing is
    only a note. `name`: a client's name by its number.
    """
    fatal = failure(lines) or _divergence(lines, test_counts)
    found = [Finding("error", fatal)] if fatal else [*_guessing(lines, test_counts, finished), *_unchanged(lines)]
    found += _refused(lines, name) if _counted(lines) else []
    found += _interludes(lines)
    return by_severity(found)


def of_run(
    lines: Sequence[Line],
    partition: Description | None,
    finished: bool = True,
    stopped: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """The same, with the partition's test data, and a note if the run was `stopped` early."""
    noted = [] if stopped is None else [Finding("note", stopped["why"])]
    if partition is None:
        return [*went_wrong(lines, finished=finished), *noted]
    return by_severity([*went_wrong(lines, partition.test_counts, finished, partition.client_name), *noted])


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The most serious first."""
    return sorted(findings, key=lambda finding: SEVERITY.index(finding.level))


def failure(lines: Sequence[Line]) -> str | None:
    """Why a run has failed: no update was ever used, or the final models have no finite loss."""
    rounds = _rounds(lines)
    if rounds and not _counted(lines):
        missing, within = Counter(summarise_missing(rounds)), _count(len(rounds), "round")
        what = f"none of {missing.total()} updates in {within} counted ({_reasons(missing)})" if missing else within
        return f"nothing was trained: {what}; {_advice(missing)}"
    if _not_finite(lines[-1]):
        since = next(place for place in range(len(lines)) if all(map(_not_finite, lines[place:])))
        told = f"the loss is no finite number from round {lines[since]['round']} on"
        return f"{told}: the model of at least one client has diverged; lower --lr"
    return None


def clients_in_words(clients: Sequence[int] | np.ndarray, name: Callable[[int], str] = str) -> str:
    """ "1 client (hospital-3)", or "5 clients (0, 3, 4, ...)", for findings.

    name: a client's name by its number.
    """
    few = ", ".join(name(int(client)) for client in clients[:5]) + (", ..." if len(clients) > 5 else "")
    return f"{len(clients)} client{'s' * (len(clients) > 1)} ({few})"


def who_have(clients: Sequence[int] | np.ndarray, name: Callable[[int], str] = str) -> str:
    """ "1 client (2) has", "2 clients (0, 5) have"."""
    return f"{clients_in_words(clients, name)} {'has' if len(clients) == 1 else 'have'}"


class Guess(NamedTuple):
    """Accuracies without learning, in percent, mean over clients."""

    common: float  # one prediction for all clients: the most frequent class
    limit: float  # accuracies up to here are indistinguishable from that, given the number of test samples
    own: float  # every client predicts its own most frequent class


def guess(test_counts: np.ndarray) -> Guess:
    """The accuracy of guessing, from (N, C) test samples by class.

    1/C is too low a bar if classes are not equally frequent. The share of a client's own most frequent class is too
    high: a global model that separates ten classes may be below it if every client has two classes. The bar is
    therefore the best single prediction for all clients, plus two standard errors of a mean over the test samples.
    """
    sizes = test_counts.sum(axis=1)  # (N,)
    tested = test_counts[sizes > 0]
    sizes, shares = sizes[sizes > 0], tested / tested.sum(axis=1, keepdims=True)
    if not len(sizes):
        return Guess(100.0, 100.0, 100.0)
    common = float(shares.mean(axis=0).max())
    error = math.sqrt(common * (1 - common) * float((1 / sizes).sum())) / len(sizes)
    return Guess(100 * common, 100 * (common + STANDARD_ERRORS * error), 100 * float(shares.max(axis=1).mean()))


def _divergence(lines: Sequence[Line], test_counts: np.ndarray | None) -> str | None:
    """Whether finite models have become worse than at the start, in loss and accuracy.

    The loss alone is not enough: overfitting models can gain accuracy with a growing loss.
    """
    first, last = lines[0]["loss_before"], lines[-1]["loss_before"]
    if first is None or last is None or last <= GROWTH * first:
        return None
    accuracy = lines[-1]["before"]["all"]
    bar = lines[0]["before"]["all"] if test_counts is None else guess(test_counts).limit
    if accuracy is not None and bar is not None and accuracy > bar:
        return None
    than = "" if accuracy is None else f", with {accuracy:.1f} % of test samples right"
    return f"training has diverged: the loss grew from {first:.4g} to {last:.4g}{than}; lower --lr"


def _guessing(lines: Sequence[Line], test_counts: np.ndarray | None, finished: bool) -> Iterator[Finding]:
    """Whether the accuracy is at the level of guessing."""
    accuracy = lines[-1]["before"]["all"]
    if accuracy is None or test_counts is None:
        return
    bar, after = guess(test_counts), "after the last round" if finished else f"after {len(lines) - 1} rounds"
    if bar.limit >= 100:
        few = f"{int(test_counts.sum())} test samples are too few, or of too few classes"
        yield Finding("note", f"{few}, to tell training from guessing")
    elif accuracy <= bar.limit:
        told = f"{accuracy:.1f} % {after} cannot be told from guessing: one answer for all has {bar.common:.1f} %"
        remedy = "take more --rounds or another --lr"
        yield Finding("error" if finished else "note", f"{told}, by chance up to {bar.limit:.1f} %; {remedy}")
    elif accuracy < bar.own:
        told = f"{accuracy:.1f} % {after} is less than if every client always gave its own most frequent class"
        yield Finding("warning" if finished else "note", f"{told}, which has {bar.own:.1f} %")


def _unchanged(lines: Sequence[Line]) -> Iterator[Finding]:
    losses = {line["loss_before"] for line in lines if line.get("evaluated") != 0}
    if len(lines) > 1 and len(losses) == 1 and None not in losses:
        told = f"the loss is {losses.pop()} before and after {_count(len(lines) - 1, 'round')}"
        yield Finding("warning", f"{told}: nothing was learnt; raise --lr")


def _refused(lines: Sequence[Line], name: Callable[[int], str]) -> Iterator[Finding]:
    """Unused updates, in a run in which some were used: invalid ones, and those not received."""
    rounds = _rounds(lines)
    missing = Counter(summarise_missing(rounds))
    invited = missing.total() + sum(line["participants"] for line in rounds)
    absent = Counter({why: count for why, count in missing.items() if why in (ABSENT, LATE, OFFLINE)})
    never = set.intersection(*({each for own in line.get("missing", {}).values() for each in own} for line in rounds))
    for reasons, broken in ((missing - absent, True), (absent, False)):
        if reasons:
            told = f"{reasons.total()} of {_count(invited, 'update')} did not count ({_reasons(reasons)})"
            always = f"; {clients_in_words(sorted(never), name)} never counted" if never and reasons == missing else ""
            grave = broken or 2 * reasons.total() > invited
            yield Finding("warning" if grave else "note", f"{told}{always}; {_advice(reasons)}")


def _interludes(lines: Sequence[Line]) -> Iterator[Finding]:
    """Rounds without a finite loss, in a run that has one at the end."""
    lost = [str(line["round"]) for line in lines if _not_finite(line)]
    if lost and not _not_finite(lines[-1]):
        shown = ", ".join(lost[:5]) + (", ..." if len(lost) > 5 else "")
        yield Finding("warning", f"the loss was no finite number before rounds {shown}; lower --lr")


def _rounds(lines: Iterable[Line]) -> list[Line]:
    """All but the last line of a finished run, which is about the final models."""
    return [line for line in lines if "participants" in line]


def _counted(lines: Iterable[Line]) -> int:
    return sum(line["participants"] for line in _rounds(lines))


def _not_finite(line: Line) -> bool:
    """Whether some client's loss is not finite; False if no client was evaluated."""
    return line["loss_before"] is None and line.get("evaluated") != 0


def _reasons(missing: Counter[str]) -> str:
    return ", ".join(f"{count} {why}" for why, count in missing.most_common())


def _advice(missing: Counter[str]) -> str:
    """Advice for the most frequent reason; a node's own text may follow "invalid"."""
    why = missing.most_common(1)[0][0] if missing else ""
    known = next((advice for reason, advice in ADVICE.items() if why.startswith(reason)), None)
    return known or "see whether nodes are online, and their logs"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
