"""`feddwa export`: the trained models of a run as files for other programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from feddwa.errors import InputError
from feddwa.params import Option


@dataclass(frozen=True)
class ExportConfig:
    """Write the trained model of a client, or of every client, to a file. The data of the run are not needed."""

    directory: Annotated[str, Option(metavar="RUN", positional=True)]
    """Directory of a finished run, or one that `feddwa adapt` wrote."""
    client: str | None = None
    """Name or number of the client; default: all of them, into a folder."""
    format: Literal["safetensors", "torch-export", "onnx", "peft"] | None = None
    """Parameters for --model NAME@FILE, a program, or a folder for peft [what -o ends in, else safetensors]."""
    out: Annotated[str | None, Option(metavar="PATH", short="-o")] = None
    """File or, for peft, folder to write [the client's name]; for all clients a folder [exported]."""


def export_command(config: ExportConfig) -> int:
    """`feddwa export`."""
    from feddwa.results.runs import read_models
    from feddwa.trained import export

    trained = read_models(Path(config.directory))
    card = trained.card
    out = Path(config.out or "exported")
    form = export.format_of(config.format, out, config.client is not None)
    try:
        if config.client is None:
            written = export.export_all(trained, out, form)
            print(f"wrote {len(written)} models and {out / export.INDEX}")
            return 0
        client = card.client(config.client)
        out = Path(config.out or export.file_name(card, client, form))
        export.export(trained, client, out, form)
    except OSError as error:
        raise InputError(f"-o {out}: cannot write there: {error.strerror}") from None
    accuracy = card.accuracy[client]
    told = "" if accuracy is None else f"; {accuracy:.2f} % on its {card.test_samples[client]} test samples"
    size = sum(file.stat().st_size for file in ([out] if out.is_file() else out.iterdir()))
    print(f"wrote {out} ({size:,} bytes): the model of {card.clients[client]}{told}")
    return 0
