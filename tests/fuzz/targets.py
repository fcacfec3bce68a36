"""All targets."""

from tests.fuzz.case import Target
from tests.fuzz.checkpoints import Checkpoints
from tests.fuzz.command_line import CommandLine
from tests.fuzz.configuration import Configuration
from tests.fuzz.messages import Messages
from tests.fuzz.own_data import Csv, Images, Npz, Parquet
from tests.fuzz.published import Published
from tests.fuzz.run_directory import RunDirectory

KINDS: tuple[type[Target], ...] = (
    CommandLine, Configuration, Csv, Parquet, Npz, Images, RunDirectory, Checkpoints, Messages, Published,
)  # fmt: skip
TARGETS = {kind.name: kind for kind in KINDS}
