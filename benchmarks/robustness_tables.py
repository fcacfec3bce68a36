"""The tables of docs/robustness.md from stored cells; missing cells are dashes and counted."""

import itertools
from collections.abc import Collection, Iterator
from statistics import mean

from robustness_cells import (
    ATTACKS,
    CANDIDATES,
    CHOICE_ATTACKS,
    DATASETS,
    DIVISIONS,
    LIMITS,
    LOUD,
    METHODS,
    NONE,
    Cell,
    Outcome,
    Store,
    absence_cells,
    choice_cells,
    cost_cells,
    grid_cells,
    limit_cells,
)

TITLES = {
    "feddwa": "FedDWA", "fedavg": "FedAvg", "local": "Local", "fedrod": "FedRoD", "ditto": "Ditto",
    "feddwa_plus": "FedDWA+",
}  # fmt: skip
SHARES = (0.1, 0.2, 0.3)
ALLOWED = 2.0  # points that a fifth of attackers may cost


def lost_table(store: Store) -> Iterator[str]:
    """Points that a fifth of attackers cost the same honest clients, against no attack and no defence."""
    yield from _head("data", "method", "no attack", "worst attack", "best defence", "mean", "worst attack", "within 2")
    for dataset, algorithm in itertools.product(DATASETS, METHODS):
        best, clean = store.chosen(algorithm), store.get(Cell(dataset, algorithm))
        bare, defended = (losses(store, dataset, algorithm, defence) for defence in (NONE, best or "not chosen yet"))
        if clean and bare:
            cells = f"{clean.mean:.1f} | {_worst(bare)} | {_shown(best) if best else '-'} | {_lost(defended)}"
            yield f"| {dataset} | {TITLES[algorithm]} | {cells} |"


def _lost(found: dict[str, float]) -> str:
    """Mean and worst loss, and the number of attacks within the allowed loss."""
    if not found:
        return "- | - | -"
    within = f"{sum(lost <= ALLOWED for lost in found.values())} of {len(found)}"
    return f"{-mean(found.values()):+.1f} | {_worst(found)} | {within}"


def losses(store: Store, dataset: str, algorithm: str, defence: str, share: float = 0.2) -> dict[str, float]:
    """Attack -> points lost by honest clients, for attacks with results."""
    clean, found = store.get(Cell(dataset, algorithm)), {}
    for attack in ATTACKS[dataset]:
        attacked = store.get(Cell(dataset, algorithm, attack, share, defence))
        if clean and attacked:
            found[attack] = clean.of(attacked) - attacked.of(attacked)
    return found


def choice_table(store: Store) -> Iterator[str]:
    """Defences on held-out training data of digits, with seeds of no other table."""
    yield from _head("method", "defence", "no attack", "mean over attacks", "worst attack")
    for algorithm in METHODS:
        for defence in CANDIDATES[algorithm]:
            cells = choice_cells(algorithm, defence)
            if store.keys() >= set(cells):
                clean, *attacked = (store[cell].mean for cell in cells)
                worst = min(zip(attacked, CHOICE_ATTACKS, strict=True))
                best = " (best)" if store.chosen(algorithm) == defence else ""
                told = f"{clean:.1f} | {mean(attacked):.1f} | {worst[0]:.1f}, {worst[1]}"
                yield f"| {TITLES[algorithm]} | {_shown(defence)}{best} | {told} |"
    yield from _run(store, [cell for name in METHODS for each in CANDIDATES[name] for cell in choice_cells(name, each)])


def grid_table(store: Store, dataset: str) -> Iterator[str]:
    """Every attack and method without a defence and with the best one: mean and worst tenth of honest clients."""
    yield from _head("attack", "method", *_shares())
    for attack, algorithm in itertools.product(("", *ATTACKS[dataset]), METHODS):
        outcomes = _outcomes(store, dataset, algorithm, attack)
        if any(outcomes):
            yield f"| {attack or 'none'} | {TITLES[algorithm]} | " + " | ".join(map(_both, outcomes)) + " |"
    cells = itertools.chain.from_iterable(
        grid_cells(dataset, algorithm, share, defence)
        for algorithm, share in itertools.product(METHODS, SHARES)
        for defence in (NONE, store.chosen(algorithm) or "not chosen yet")
    )
    yield from _run(store, set(cells))


def backdoor_table(store: Store) -> Iterator[str]:
    """Success of the backdoor among honest clients of digits."""
    yield from _head("method", *_shares())
    for algorithm in METHODS:
        outcomes = _outcomes(store, "digits", algorithm, "backdoor")
        if any(outcomes):
            told = (f"{mean(own.triggered):.1f}" if own else "-" for own in outcomes)
            yield f"| {TITLES[algorithm]} | " + " | ".join(told) + " |"


def weight_table(store: Store) -> Iterator[str]:
    """Share of their weight that honest clients give to a fifth of attackers, in percent, without a defence."""
    names = ("fedavg", "feddwa", "feddwa_plus")
    yield from _head("attack", *(f"{TITLES[name]}, {dataset}" for dataset in DATASETS for name in names))
    for attack in ATTACKS["digits"]:
        found = [store.get(Cell(dataset, name, attack, 0.2)) for dataset in DATASETS for name in names]
        told = (f"{mean(own.given):.1f}" if own else "-" for own in found)
        yield f"| {attack} | " + " | ".join(told) + " |"


def collusion_table(store: Store) -> Iterator[str]:
    """30 % of the clients against one of digits: all honest clients, and the victim with and without the attack."""
    yield from _head("method", "defence", "honest clients", "victim", "victim without attack", "weight given")
    for algorithm in METHODS:
        for defence in dict.fromkeys((NONE, store.chosen(algorithm) or NONE)):
            hurt, well = (
                store.get(Cell("digits", algorithm, *each, defence)) for each in (("collusion", 0.3), ("", 0.0))
            )
            if hurt and well:
                victim, before = (
                    mean(own[client] for own, client in zip(each.accuracy, hurt.victim, strict=True))
                    for each in (hurt, well)
                )
                told = f"{hurt.mean:.1f} | {victim:.1f} | {before:.1f} | {mean(hurt.given):.0f} %"
                yield f"| {TITLES[algorithm]} | {_shown(defence)} | {told} |"


def cost_table(store: Store) -> Iterator[str]:
    """Accuracy of FedDWA+ with defences but no attackers, on five divisions of digits."""
    yield from _head("partition", *(_shown(cell.defence) for cell in cost_cells(store, DIVISIONS[0])))
    for division in DIVISIONS:
        told = (_mean(store.get(cell)) for cell in cost_cells(store, division))
        yield f"| {division} | " + " | ".join(told) + " |"


def limits_table(store: Store) -> Iterator[str]:
    """FedDWA where top-K cannot exclude attackers, and their share of the weight in the first five rounds."""
    yield from _head("setting", "no attack", *(f"{attack}, 30%" for attack in LOUD))
    for setting in LIMITS:
        outcomes = [store.get(cell) for cell in limit_cells(setting)]
        first = [f" ({mean(own.at_first):.0f} %)" if own and own.at_first else "" for own in outcomes]
        told = (_mean(own) + share for own, share in zip(outcomes, first, strict=True))
        yield f"| {setting} | " + " | ".join(told) + " |"


def dropout_table(store: Store) -> Iterator[str]:
    """Accuracy with absent clients: mean, and each seed."""
    yield from _head("method", *(f"{share} of the clients absent" for share in ("none", "20 %", "50 %")))
    for algorithm in ("feddwa", "fedavg", "local"):
        found = [store.get(cell) for cell in absence_cells(algorithm)]
        told = (f"{own.mean:.1f} ({', '.join(f'{each:.1f}' for each in own.honest)})" if own else "-" for own in found)
        yield f"| {TITLES[algorithm]} | " + " | ".join(told) + " |"


def _head(*names: str) -> Iterator[str]:
    yield "| " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * (len(names) - 1)


def _shares() -> list[str]:
    return [f"{share:.0%}{told}" for told in ("", ", defended") for share in SHARES]


def _outcomes(store: Store, dataset: str, algorithm: str, attack: str) -> list[Outcome | None]:
    """Outcomes by share, without a defence and with the best one; None without results."""
    best = store.chosen(algorithm)
    options = [(share if attack else 0.0, defence) for defence in (NONE, best) for share in SHARES]
    return [store.get(Cell(dataset, algorithm, attack, *own)) if own[1] else None for own in options]


def _run(store: Store, cells: Collection[Cell]) -> Iterator[str]:
    """A line with the number of cells that have been run."""
    known = sum(cell in store for cell in cells)
    yield ""
    yield f"{known} of {len(cells)} cells have been run{'; nothing or - stands for the others' * (known < len(cells))}."


def _worst(found: dict[str, float]) -> str:
    worst = max(found, key=found.__getitem__)
    return f"{-found[worst]:+.1f}, {worst}"


def _shown(defence: str) -> str:
    return defence if defence == NONE else f"`{defence}`"


def _both(outcome: Outcome | None) -> str:
    return "-" if outcome is None else f"{outcome.mean:.1f} ({outcome.worst:.1f})"


def _mean(outcome: Outcome | None) -> str:
    return "-" if outcome is None else f"{outcome.mean:.1f}"
