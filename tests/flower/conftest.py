"""These tests need Flower. It warns, as do things it stands on, of futures of its own when loaded; not ours to mend."""

import importlib.util
import warnings

collect_ignore_glob = []

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flwr.clientapp
        import flwr.serverapp
        import flwr.superlink.grid  # noqa: F401
