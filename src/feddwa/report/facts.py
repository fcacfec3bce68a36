"""What runs came to, in words: the sentences on top of a report, with units, for somebody who knows nothing of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feddwa import doctor
from feddwa.report.collect import flow, gains, local_runs
from feddwa.report.reading import Method, Record
from feddwa.report.units import human_bytes

LEVEL = 0.05  # points of difference below which a client is called level


@dataclass(frozen=True)
class Figure:
    """A number for a card."""

    value: str
    label: str


def protagonist(methods: Sequence[Method]) -> Method:
    """The method that the headline is about: FedDWA, or else the best that is not Local."""
    others = [method for method in methods if method.algorithm != "local"] or list(methods)
    return next((method for method in others if method.algorithm == "feddwa"), others[0])


def headline(methods: Sequence[Method]) -> str:
    """Did joining pay, for whom, how much?"""
    main = protagonist(methods)
    gain = all_gains(main, methods)
    reached = f"{main.last:.1f} % of test samples answered rightly"
    if gain is None:
        return f"{main.name}: {reached}, mean over all clients{_in_seeds(main)}."
    better = int((gain > LEVEL).sum())
    local = local_runs(methods)
    alone = float(np.mean([local[seed].curve[-1] for run in main.runs if (seed := run.config.seed) in local]))
    change = f"{gain.mean():+.1f} points over training alone ({alone + gain.mean():.1f} % against {alone:.1f} %)"
    return f"{better} of {len(gain)} clients gained by joining; mean {change}{_in_seeds(main)}."


def story(methods: Sequence[Method]) -> list[str]:
    """The sentences under the headline."""
    main, told = protagonist(methods), []
    if all_gains(main, methods) is None and main.algorithm != "local":
        told.append("Whether joining paid is not known: there is no run of Local, each client alone, to compare with.")
    elif main.algorithm != "local":
        told.append(_losers(main, methods))
    told += [_partners(main)] if _partners(main) else []
    told += [_cost(main, methods)]
    unfinished = [run for method in methods for run in method.runs if not run.finished]
    if unfinished:
        told.append(f"{len(unfinished)} of these runs had not finished when this was written; their curves end early.")
    return told + [f"{method.name}: {text}." for method in methods for text in _misfits(method.runs[0])]


def _misfits(run: Record) -> list[str]:
    """Where the method's hyper-parameters do not fit the task, so that its number says little about it."""
    found = doctor.method_traps(run.config, run.lines, [each.matrix for each in run.weights])
    return [finding.text for finding in found if finding.level == "warning"]


def cards(methods: Sequence[Method]) -> list[Figure]:
    """The figures beside the headline."""
    main = protagonist(methods)
    gain = all_gains(main, methods)
    found = [Figure(f"{main.last:.1f} %", f"accuracy of {main.name} after the last round, mean over clients")]
    if gain is not None:
        found.append(Figure(f"{gain.mean():+.1f} points", "over Local, where each client trains alone"))
        found.append(Figure(f"{int((gain > LEVEL).sum())} of {len(gain)}", f"clients that gained{_in_seeds(main)}"))
    found.append(Figure(human_bytes(traffic(main)), f"sent and received by a client in a round of {main.name}"))
    return found


def all_gains(method: Method, methods: Sequence[Method]) -> np.ndarray | None:
    """Points over Local of every client of every seed that Local was run with."""
    local = local_runs(methods)
    found = [gain for run in method.runs if (gain := gains(run, local.get(run.config.seed))) is not None]
    return np.concatenate(found) if found else None


def traffic(method: Method) -> int:
    """Bytes up and down per participating client and round, mean over rounds."""
    lines = [line for run in method.runs for line in run.lines if "bytes_up" in line]
    total: int = sum(line["bytes_up"] + line["bytes_down"] for line in lines)
    return round(total / max(len(lines), 1))


def _in_seeds(method: Method) -> str:
    return f", in {len(method.runs)} seeds" if len(method.runs) > 1 else ""


def _losers(main: Method, methods: Sequence[Method]) -> str:
    gain = all_gains(main, methods)
    assert gain is not None
    worse, level = int((gain < -LEVEL).sum()), int((np.abs(gain) <= LEVEL).sum())
    if not worse:
        return (
            f"Nobody lost by it{f'; {level} stayed level' if level else ''}. The most gained {gain.max():.1f} points."
        )
    lost = f"{worse} lost by it (up to {-gain.min():.1f} points){f', {level} stayed level' if level else ''}"
    return f"{lost}; the most gained {gain.max():.1f} points."


def _partners(main: Method) -> str:
    """Where the weight goes, if the setting has groups that the server was not told of."""
    run = main.runs[0]
    if not run.weights:
        return ""
    groups = None if run.partition is None else run.partition.groups
    shares = flow(run.weights, groups)
    own, kin, rest = shares[-1]
    if own > 0.995:
        earlier = f"; earlier up to {100 * (1 - shares[:, 0].min()):.0f} % came from others"
        return f"In the last round a client's new model was all its own{earlier if shares[:, 0].min() < 0.995 else ''}."
    kept = f"In the last round {100 * own:.0f} % of a client's new model was its own"
    if groups is None:
        return f"{kept}, {100 * (1 - own):.0f} % came from others."
    return (
        f"{kept}. Of what came from others, {100 * kin / (kin + rest):.0f} % came from clients of its own group, "
        f"though the server was told nothing of the {len(np.unique(groups))} groups."
    )


def _cost(main: Method, methods: Sequence[Method]) -> str:
    own, average = traffic(main), next((method for method in methods if method.name == "FedAvg"), None)
    sent = f"A client sent and received {human_bytes(own)} in a round"
    if average is None or average is main or not traffic(average):
        return f"{sent}."
    return f"{sent}, {own / traffic(average):.1f} times as much as with one global model (FedAvg)."
