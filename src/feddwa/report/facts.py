"""The sentences at the top of a report: results with units, for readers who do not know the experiment."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feddwa import doctor
from feddwa.config import RunConfig
from feddwa.errors import counted
from feddwa.plugins import label
from feddwa.results.collaboration import flow
from feddwa.results.compare import Gain, gain_over, lead_over, local_runs, reference, unequal_seeds
from feddwa.results.findings import guess
from feddwa.results.measure import ACCURACY
from feddwa.results.methods import Method
from feddwa.results.units import human_bytes

MANY = 5  # methods that are named in a sentence at most


@dataclass(frozen=True)
class Figure:
    """A number for a card."""

    value: str
    label: str


def lead(methods: Sequence[Method]) -> Method:
    """The leading method: the best sound one after the last round.

    One that has not finished leads only where none has.
    """
    return max(methods, key=lambda method: (method.sound, method.finished, method.rank))


def headline(methods: Sequence[Method]) -> str:
    """Which method leads, by how much, and for how many clients joining paid; then what went wrong with others."""
    failed = [sentence for sentence, _ in _failures(methods)]
    return " ".join([*([_result(methods)] if lead(methods).sound else []), *failed])


def _failures(methods: Sequence[Method]) -> list[tuple[str, list[str]]]:
    """Why methods' accuracies mean nothing: of reasons of one kind a sentence, and where they differ the details."""
    kinds: dict[str, dict[str, list[str]]] = {}  # kind -> reason -> methods
    for method in methods:
        broken = [(run, found.text) for run in method.runs for found in run.findings if found.level == "error"]
        if broken:
            whose = method.name if len(method.runs) == 1 else f"{method.name} (seed {broken[0][0].seed})"
            kinds.setdefault(_kind(broken[0][1]), {}).setdefault(broken[0][1], []).append(whose)
    told = []
    for kind, reasons in kinds.items():
        if len(reasons) == 1:
            told += [(f"{_listed(names)}: {why}.", list[str]()) for why, names in reasons.items()]
        else:
            everybody = _listed([name for names in reasons.values() for name in names])
            told.append((f"{everybody}: {kind}.", [f"{_listed(names)}: {why}" for why, names in reasons.items()]))
    return told


def _kind(reason: str) -> str:
    """A reason without its numbers: "training has diverged; lower --lr"."""
    what, advice = reason.partition(":")[0], reason.rpartition("; ")[2]
    return f"{re.sub(r'^[0-9.]+ %', 'the accuracy', what)}; {advice}"


def _result(methods: Sequence[Method]) -> str:
    main = lead(methods)
    measure = main.measure
    if len(methods) == 1:
        reached = (
            f"{measure.text(main.last)}{' of test samples answered correctly' if measure.unit else ' on test samples'}"
        )
        return f"{main.title}: {reached}, mean over all clients{_in_seeds(main)}."
    rest = [other for other in methods if other is not main and other.sound]
    level = [other.name for other in rest if (own := lead_over(main, other)) and own.apart.mean < measure.level]
    so_far = "" if main.finished else " so far"
    leads = f"{_listed([main.title, *level])} lead{'' if level else 's'}{so_far} with {measure.text(main.last)}"
    gain = all_gains(main, methods)
    if main.algorithm == "local":
        return f"{leads}{_in_seeds(main)}: {_alone(main, methods)}."
    if gain is None:
        return f"{leads}, mean over all clients{_in_seeds(main)}."
    alone = f"training alone (Local, {measure.text(main.last - measure.sign * gain.mean)})"
    return f"{leads}: {measure.over(gain.mean)} {alone}; {_gained(gain)} gained by joining{_in_seeds(main)}."


def _gained(gain: Gain) -> str:
    return f"{gain.winners} of {len(gain.clients)} clients"


def _alone(local: Method, methods: Sequence[Method]) -> str:
    """What is said where nothing beats training alone."""
    others = [method for method in methods if method.sound and method.algorithm != "local"]
    if not others:
        return "there is no method to join that did not fail"
    best = lead(others)
    gain = all_gains(best, methods)
    if gain is None:
        return f"joining did not pay; the best of the others, {best.name}, has {best.measure.text(best.last)}"
    reached = f"with {best.name}, the best of the others, it is {best.measure.text(best.last)}"
    return f"joining did not pay; {reached}, and {_gained(gain)} gained by joining"


def attacked(configs: Mapping[str, RunConfig]) -> list[str]:
    """Which clients' scores are shown under attack, and which methods have a defence; configs: by method name."""
    attacks = {config.attack for config in configs.values() if config.attack}
    told = [f"Attackers: {each}. All numbers are those of the honest clients alone." for each in sorted(attacks)]
    defended = {name: config.defences for name, config in configs.items() if config.defences}
    return told + [f"Defence of {name}: {', '.join(map(label, own))}." for name, own in defended.items()]


def story(methods: Sequence[Method]) -> list[str]:
    """The sentences under the headline."""
    main, told = lead(methods), []
    if main.sound:
        told += [_others(main, methods)] if len(methods) > 1 else []
        told += [_joining(main, methods)] if main.algorithm != "local" else []
        told += [_partners(main), _cost(main, methods)]
    told += attacked({method.name: method.runs[0].config for method in methods})
    told += [_seed_by_seed(main, methods)]
    return [sentence for sentence in told if sentence]


def warnings(methods: Sequence[Method]) -> list[str]:
    """Warnings before a comparison: unfinished runs, unequal settings, findings."""
    found = dict.fromkeys([*_unfinished(methods), *filter(None, [_unequal_rounds(methods), unequal_seeds(methods)])])
    found |= dict.fromkeys(detail for _, details in _failures(methods) for detail in details)
    for method in methods:
        seeds: dict[str, list[str]] = {}  # what is told -> of which seeds
        for run in method.runs:
            for text in dict.fromkeys(each.text for each in doctor.told(run) if each.level != "error"):
                seeds.setdefault(text, []).append(str(run.seed))
        for text, own in seeds.items():
            of = "" if len(method.runs) == 1 else f", seed{'s' * (len(own) > 1)} {', '.join(own)}"
            found[f"{method.name}{of}: {text}"] = None
    return list(found)


def _unfinished(methods: Sequence[Method]) -> list[str]:
    early = [method for method in methods if not method.finished]
    rest = "" if len(early) == len(methods) else " It leads nowhere and is in no chart of costs."
    return [f"{method.name}: {method.standing}; its numbers are those of that round.{rest}" for method in early]


def _unequal_rounds(methods: Sequence[Method]) -> str:
    """Who was trained for how many rounds, where that differs among finished runs; "" where it does not."""
    rounds = {
        method.name: sorted({int(run.rounds[-1]) for run in method.runs}) for method in methods if method.finished
    }
    if len({number for own in rounds.values() for number in own}) < 2:
        return ""
    told = (f"{name} {' and '.join(map(str, own))}" for name, own in rounds.items())
    return f"Unequal rounds: {', '.join(told)}. Numbers are those after each one's last."


def guessing(methods: Sequence[Method]) -> float | None:
    """Accuracy in percent of the best constant answer on all clients' test samples; None if unknown."""
    partition = lead(methods).runs[0].partition
    if partition is None or not partition.classed or methods[0].measure is not ACCURACY:
        return None
    return guess(partition.test_counts).common


def cards(methods: Sequence[Method]) -> list[Figure]:
    """The figures beside the headline; none where every method failed."""
    main = lead(methods)
    if not main.sound:
        return []
    gain = all_gains(main, methods)
    value = f"{main.last:{main.measure.plain}}{main.measure.unit}"
    found = [Figure(value, f"{main.measure.name} of {main.name} after the last round, mean over clients")]
    if gain is not None:
        *amount, than = main.measure.over(gain.mean).split()
        of = f"of {main.name} {than}" if main.measure.sign > 0 else f"loss of {main.name} {than} that of"
        found.append(Figure(" ".join(amount), f"{of} Local, where each client trains alone"))
        better = f"{gain.winners} of {len(gain.clients)}"
        found.append(Figure(better, f"clients that gained with {main.name}{_in_seeds(main)}"))
    found.append(Figure(human_bytes(round(main.traffic)), f"sent and received by a client in a round of {main.name}"))
    chance = guessing(methods)
    if chance is not None:
        found.append(Figure(f"{chance:.1f} %", "what guessing has: the best single answer for all test samples"))
    return found


def all_gains(method: Method, methods: Sequence[Method]) -> Gain | None:
    """Points over Local of every client of every seed that Local was run with."""
    return gain_over(method.runs, local_runs(methods))


def _listed(names: Sequence[str]) -> str:
    """ "A", "A and B", "A, B and C"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _in_seeds(method: Method) -> str:
    return f", in {len(method.runs)} seeds" if len(method.runs) > 1 else ""


def _others(main: Method, methods: Sequence[Method]) -> str:
    """How the other methods compare with the one that leads."""
    rest = [method for method in methods if method is not main and method.sound]
    shown = rest if len(rest) <= MANY else [*rest[: MANY - 1], rest[-1]]
    told = [f"{method.title} {_against(method, main)}" for method in shown]
    if len(shown) < len(rest):
        return f"Behind {main.name}: {', '.join(told[:-1])}; the last of {len(rest)} is {told[-1]}."
    return f"Behind {main.name}: {', '.join(told)}." if told else ""


def _against(method: Method, main: Method) -> str:
    """A method's value, and how far it is from the one that leads: "80.1 % (-2.0 points)"."""
    measure, apart = main.measure, lead_over(method, main)
    value = f"{method.last:{measure.plain}}{measure.unit}"
    if apart is None:
        return value
    return f"{value} ({measure.sign * apart.apart.mean:+{measure.plain}}{' points' if measure.unit else ''})"


def _seed_by_seed(main: Method, methods: Sequence[Method]) -> str:
    """The interval of the lead over Local, or where Local leads over the first of the others."""
    others = [method for method in methods if method is not main]
    base = reference(methods) if main is not reference(methods) else next(iter(others), main)
    found, measure = lead_over(main, base), main.measure
    if found is None or found.ends is None:
        return ""
    ends = f"95 % CI {measure.gain(found.ends.low)} to {measure.gain(found.ends.high)}, n = {len(found.apart.values)}"
    told = f"Seed by seed, {main.name} is {measure.over(found.apart.mean)} {base.name} ({ends})"
    return f"{told}: the seeds do not tell them apart." if found.ends.includes_zero else f"{told}."


def _joining(main: Method, methods: Sequence[Method]) -> str:
    """The clients that lost by joining, or why that is unknown."""
    gain = all_gains(main, methods)
    if gain is None:
        failed = any(method.algorithm == "local" and not method.sound for method in methods)
        why = "Local, each client alone, failed" if failed else "there is no run of Local, each client alone,"
        return f"Whether joining paid is not known: {why}{'.' if failed else ' to compare with.'}"
    worse, level = int((gain.clients < -gain.level).sum()), int((np.abs(gain.clients) <= gain.level).sum())
    stayed, amount = f", {level} stayed level" if level else "", main.measure.amount
    who = counted(worse, "client")
    lost = f"{who} lost by joining (up to {amount(-gain.clients.min())})" if worse else "nobody lost by joining"
    return f"With {main.name} {lost}{stayed}; the largest gain is {amount(gain.clients.max())}."


def _partners(main: Method) -> str:
    """Share of the aggregation weight inside the true groups, if there are any."""
    run = main.runs[0]
    if not run.weights:
        return ""
    groups = run.groups
    shares = flow(run.weights, groups)
    own, kin, rest = shares[-1]
    if own > 0.995:
        earlier = f"; earlier up to {100 * (1 - shares[:, 0].min()):.0f} % came from others"
        mixed = earlier if shares[:, 0].min() < 0.995 else ""
        return f"In the last round of {main.name} a client's new model was all its own{mixed}."
    kept = f"In the last round of {main.name} {100 * own:.0f} % of a client's new model was its own"
    if groups is None:
        return f"{kept}, {100 * (1 - own):.0f} % came from others."
    return (
        f"{kept}. Of what came from others, {100 * kin / (kin + rest):.0f} % came from clients of its own group, "
        f"though the server was told nothing of the {len(np.unique(groups))} groups."
    )


def _cost(main: Method, methods: Sequence[Method]) -> str:
    average = next((method for method in methods if method.name == "FedAvg"), None)
    sent = f"With {main.name} a client sent and received {human_bytes(round(main.traffic))} in a round"
    if average is None or average is main or not average.traffic:
        return f"{sent}."
    return f"{sent}, {main.traffic / average.traffic:.1f} times as much as with one global model (FedAvg)."
