"""Writes the table of docs/privacy.md: what every method's messages disclose, as a small federation sends them.

python docs/disclosure.py
"""

import re
from pathlib import Path

import numpy as np
import torch
from torch import nn

from feddwa.algorithms import ALGORITHMS, Algorithm
from feddwa.data.dataset import Dataset
from feddwa.data.federated import FederatedData, federate
from feddwa.data.partition import Partition
from feddwa.engine import Engine, Settings
from feddwa.engine.rows import tensors
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.options.privacy import PUBLIC, Privacy
from feddwa.privacy.coverage import DryRun
from feddwa.sides import network_of

PAGE = Path(__file__).parent / "privacy.md"
CLIENTS, SAMPLES, CLASSES = 6, 12, 3  # of a client


def data_for(algorithm: Algorithm) -> FederatedData:
    """Random samples, divided as the method wants them."""
    rng, count = np.random.default_rng(0), CLIENTS * SAMPLES
    x, y = rng.normal(size=(2 * count, 4)).astype(np.float32), rng.integers(0, CLASSES, 2 * count)
    rows = np.split(np.arange(2 * count), 2 * CLIENTS)
    dataset = Dataset("probe", x, y, count, CLASSES)
    data = federate(dataset, Partition(rows[:CLIENTS], rows[CLIENTS:]), torch.device("cpu"))
    return algorithm.split(data, np.random.default_rng(1))


def begun(algorithm: Algorithm, privacy: Privacy = PUBLIC) -> Federation:
    """A small federation before its first round."""
    torch.manual_seed(0)
    module = network_of(algorithm, nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES)), 0)
    return Federation(algorithm, Engine(module, data_for(algorithm), Settings(1, 4, 0.1)), privacy=privacy)


def covered(algorithm: Algorithm, unit: str) -> bool:
    """Whether a unit of --dp covers the method; no noise is needed to know that."""
    try:
        begun(algorithm, Privacy(clip=1.0, unit=unit))  # type: ignore[arg-type]  # one of its words
    except InputError:
        return False
    return True


def row(name: str) -> str:
    """The line of a method."""
    algorithm = ALGORITHMS[name]()
    title = algorithm.title
    try:
        federation = begun(algorithm)
    except InputError:
        return ""
    dry = DryRun(
        algorithm, federation.server_side.batchnorm, federation.engine, federation.server, federation.memory,
        federation.all_clients(),
    )  # fmt: skip
    sent = [f"{part} ({sum(value[0].numel() for value in rows.values())})" for part, rows in dry.upload.items() if rows]
    counts = ["label counts"] if algorithm.discloses_labels else []
    federation.step()
    download = federation.server_side.download(federation.server, federation.all_clients())
    parts = [value for _, value in tensors(download)]
    alike = all(bool((value == value[:1]).all()) for value in parts)
    seen = "nothing" if not parts else "the same for all" if alike else "its own: a mixture or several models"
    units = ["yes" if covered(algorithm, unit) else "-" for unit in ("client", "local", "sample")]
    statistics = ", ".join(sorted(dry.statistics) + counts) or "-"
    return f"| {title} | {', '.join(sent) or 'nothing'} | {statistics} | {seen} | {' | '.join(units)} |\n"


def main() -> None:
    """Write the table."""
    head = "| method | sends (numbers) | of it statistics of samples | receives | `client` | `local` | `sample` |\n"
    text = head + "| --- |" + " --- |" * 6 + "\n" + "".join(map(row, ALGORITHMS))
    page = PAGE.read_text(encoding="utf-8")
    found = re.sub(
        r"(<!-- disclosed -->\n).*?(<!-- end -->)", lambda match: match[1] + text + match[2], page, flags=re.DOTALL
    )
    PAGE.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
