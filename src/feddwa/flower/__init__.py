"""Federations over Flower: every algorithm of this package, both sides unchanged (needs `feddwa[flower]`)."""

import os

# Flower reads these when it is imported: no telemetry, no update check, no installation of packages during a run.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
