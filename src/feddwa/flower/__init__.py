"""A real federation: every algorithm of this package over Flower, its halves unchanged (needs `feddwa[flower]`)."""

import os

# Read when Flower is loaded: nothing is reported to anybody, nothing is looked up or installed while a run goes on.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
