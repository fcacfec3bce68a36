"""`feddwa predict`: what a trained model says about new samples."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from feddwa.errors import InputError, counted
from feddwa.params import Option


@dataclass(frozen=True)
class PredictConfig:
    """Apply a client's trained model to new samples: a table of classes with probabilities, or of values."""

    directory: Annotated[str, Option(metavar="RUN", positional=True)]
    """Directory of a finished run, or one that `feddwa adapt` wrote."""
    data: Annotated[str, Option(metavar="DATA", positional=True)]
    """File or folder in the form of the training data; for a named dataset an .npz file with x. Labels may be in it."""
    client: str | None = None
    """Name or number of the client; default: each row's own, where the data have a column of clients."""
    out: Annotated[str | None, Option(metavar="FILE.csv", short="-o")] = None
    """CSV file to write [standard output]."""


def predict_command(config: PredictConfig) -> int:
    """`feddwa predict`."""
    from feddwa.data.options import CLIENT
    from feddwa.results.runs import CONFIG, read_config, read_models
    from feddwa.storage import write_whole
    from feddwa.trained.predict import predictions
    from feddwa.trained.samples import read

    trained = read_models(Path(config.directory))
    if config.client is not None:
        trained.card.client(config.client)
    path = Path(config.directory)
    column = read_config(path).client if (path / CONFIG).is_file() else None  # an adapted model has one client
    samples = read(trained.card, Path(config.data), column or CLIENT)
    found = predictions(trained, samples, config.client)
    for note in samples.notes:
        print(f"{Path(config.data).name}: {note}", file=sys.stderr)
    if config.out is None:
        print(found.to_csv(), end="")
    else:
        try:
            write_whole(Path(config.out), found.to_csv())
        except OSError as error:
            raise InputError(f"-o {config.out}: cannot write there: {error.strerror}") from None
        print(f"wrote {config.out}: {counted(len(found.clients), 'sample')}")
    told = {"accuracy": found.accuracy, "root mean squared error": found.error}
    for name, value in told.items():
        if value is not None:
            unit = " %" if name == "accuracy" else ""
            print(f"{name}: {value:.4g}{unit} of {len(found.clients):,} samples with labels", file=sys.stderr)
    return 0
