"""Flower and what it stands on warn of their own futures when they are loaded; that is not for us to mend."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import flwr.clientapp
    import flwr.serverapp
    import flwr.superlink.grid  # noqa: F401
