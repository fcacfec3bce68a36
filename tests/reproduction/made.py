"""Results that nobody has trained."""

from feddwa.results.content import cell_name, settings
from feddwa_reproduction.grid import Row


def put(store, experiment, column, row, seed, values, clients=(50.0, 60.0), costs=None, **more):
    """A result whose accuracies, round by round, are `values`; after local training they are a point higher."""
    config = experiment.config(column, row if isinstance(row, Row) else Row(row))
    usual = {"bytes_down": 2**20, "bytes_up": 2**21, "flops": 3e9, "seconds": 10.0}
    content = {
        "version": 1, "cell": cell_name(config), "seed": seed, "config": {**settings(config), "dtype": "float32"},
        "made": {"commit": "0" * 10, "dirty": False, "hardware": "a machine", "versions": {"torch": "2"}},
        "costs": usual | (costs or {}),
        "series": {
            "before.all": [0.0, *values],
            "before.participants_weighted": list(values),
            "after.participants_weighted": [value + 1 for value in values],
        },
        "clients": list(clients), **more,
    }  # fmt: skip
    store.save(content)
    return content
