"""`feddwa audit privacy RUN`: what models and messages tell of training data, measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from feddwa.params import Option


@dataclass(frozen=True)
class AuditConfig:
    """Attack a finished run: who was a training sample, and how many labels of each class a client has."""

    what: Annotated[Literal["privacy"], Option(positional=True)]
    """What is audited: privacy."""
    directory: Annotated[str, Option(metavar="RUN", positional=True)]
    """Directory of a finished run of one seed."""


def audit_command(options: AuditConfig) -> int:
    """`feddwa audit`."""
    from feddwa.build import completed, divided, load_dataset, make_engine, make_federation
    from feddwa.results.runs import read_config, read_models
    from feddwa.trained.audit import LOW, label_correlation, membership

    path = Path(options.directory)
    trained, config = read_models(path), read_config(path).resolved()
    dataset = load_dataset(config)
    config = completed(config, dataset)
    engine = make_engine(config, divided(config, dataset))
    for name, found in membership(trained, engine).items():
        worst = max(found.areas)
        print(f"membership, {name:9}  AUC {found.mean:.3f} mean over clients, {worst:.3f} worst", end="")
        print(f"; true positives at {LOW:.0%} false ones {found.at_low:.1%}")
    read = label_correlation(make_federation(config, engine))
    told = "not seen by the server" if read is None else f"correlation {read:.2f} with the update of round 1"
    print(f"label counts           {told}")
    return 0
