"""`feddwa adapt`: a model for a client that was not in the run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from feddwa.errors import InputError, require
from feddwa.params import Option, Repeats

if TYPE_CHECKING:
    from feddwa.trained.adapt import Adapted

SHOWN = 5  # clients that are named


@dataclass(frozen=True)
class AdaptConfig:
    """Make a model for a newcomer from the models of a finished run and its own data, and say what it gained."""

    directory: Annotated[str, Option(metavar="RUN", positional=True)]
    """Directory of a finished run."""
    data: Annotated[str | None, Option(metavar="PATH")] = None
    """The newcomer's data, with labels, in the form of the training data; of named data an .npz file of x and y."""
    epochs: Repeats = 10
    """Epochs of training on them, of the adapted model as of the one trained alone."""
    held_out: float = 0.2
    """Share of them that is used for nothing but the accuracies."""
    out: Annotated[str, Option(metavar="DIR", short="-o")] = "adapted"
    """Directory to write: `feddwa predict` and `export` take it like that of a run."""


def adapt_command(config: AdaptConfig) -> int:
    """`feddwa adapt`."""
    if config.data is None:
        raise InputError("--data: must be given: the path of the newcomer's data")
    require(config.epochs >= 1, "--epochs", config.epochs, "at least 1")
    require(0 < config.held_out < 1, "--held-out", config.held_out, "above 0 and below 1")

    from feddwa.results.runs import check_free, read_config, read_models
    from feddwa.trained.adapt import adapt
    from feddwa.trained.samples import read

    check_free(config.out)
    path, data = Path(config.directory), Path(config.data)
    trained = read_models(path)
    samples = read(trained.card, data)
    for note in samples.notes:
        print(f"{data.name}: {note}")
    name = data.stem or "newcomer"
    found = adapt(read_config(path).resolved(), trained, samples, name, config.epochs, config.held_out)
    written = found.write(Path(config.out))
    _show(found, len(trained.card.clients))
    print(f"wrote {written}")
    return 0


def _show(found: "Adapted", clients: int) -> None:
    """Print accuracy (or loss) on held-out samples (trained alone, clients' mean, adapted) and the model's origin."""
    facts = found.facts()
    print(f"{facts['train_samples']} samples to train on, {facts['held_out']} held out, on which:")
    titles = {
        "alone": f"trained alone, {found.epochs} epochs",
        "mean": f"mean of the {clients} clients' models",
        "adapted": "adapted",
    }
    for name, title in titles.items():
        own = facts["results"][name]
        told = f"{own['accuracy']:.1f} %" if own["accuracy"] is not None else f"loss {own['loss']:.4g}"
        print(f"  {title:<32} {told}")
    print(f"adapted: {found.how}")
    first = [f"{name} {weight:.2f}" for name, weight in list(found.weights.items())[:SHOWN]]
    more = len(found.weights) - len(first)
    print(f"draws on {', '.join(first)}{f' and {more} more' if more > 0 else ''}")
