"""Held-out clients in tables: their results by method, and the rules that were used."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from feddwa.results.compare import Spread
from feddwa.results.measure import Measure
from feddwa.results.record import Record
from feddwa.trained.newcomers import ALONE, EPOCHS

HEADS = {
    **{str(epochs): f"{epochs} epoch{'s' * (epochs != 1)}" for epochs in EPOCHS},
    ALONE: f"alone, {EPOCHS[-1]} epochs",
}


def served(runs: Iterable[Record]) -> bool:
    """Whether all of these runs have evaluated held-out clients."""
    return all(HEADS.keys() <= run.newcomers.keys() for run in runs)


def over_seeds(runs: Iterable[Record]) -> Mapping[str, Spread]:
    """For runs of one method: key of HEADS -> value by their measure, mean over held-out clients, per seed."""
    each = {run.seed: run.newcomers for run in runs}
    return {when: Spread({seed: float(own[when].mean()) for seed, own in each.items()}) for when in HEADS}


def ways(runs: Sequence[Record]) -> str:
    """The method's newcomer rule as text: "the global model, fine-tuned"; with counts if there are several."""
    counts: Counter[str] = Counter(how for run in runs for how in run.content["newcomers"]["how"])
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{count} of {counts.total()} {how}" for how, count in counts.most_common())


def words(measure: Measure) -> str:
    """The meaning of the numbers, for the note of a table."""
    what = "Accuracy in percent" if measure.sign > 0 else "Loss, lower is better"
    return (
        f"{what}: each held-out client's model on its own test data,\n"
        "mean over held-out clients. Epochs: of the client's training data, in all.\n"
        "Alone: from the initial model, without the others."
    )
