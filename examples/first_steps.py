"""First steps, as a notebook: editors that know `# %%` run it cell by cell, `python examples/first_steps.py` at once.

Twenty clients have cameras mounted in four orientations. Does it pay for them to train together, and who with whom?
"""

# %% Three methods on the same data
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import feddwa

ROUNDS = 40
folder = Path(mkdtemp(prefix="feddwa-"))
results = {
    name: feddwa.run(algorithm=name, rounds=ROUNDS, out=str(folder / name)) for name in ("feddwa", "local", "fedavg")
}
for name, result in results.items():
    print(f"{name:7} {result.summary['accuracy']['last']:.2f} % after {ROUNDS} rounds, mean over all clients")

# %% Who gained by joining?
from feddwa.results.compare import client_gains  # noqa: E402
from feddwa.results.record import read  # noqa: E402

joined, alone = read([folder / "feddwa"])[0], read([folder / "local"])[0]
gain = client_gains(joined, alone)
print(f"{(gain > 0).sum()} of {len(gain)} clients gained, mean {gain.mean():+.1f} points")

# %% Mixing weights. Row i of P is what client i's new model is made of.
_, cohort, weights = results["feddwa"].weights[-1]
groups = results["feddwa"].partition.groups  # the truth, of which the server was told nothing
same = groups[cohort][:, None] == groups[cohort]
inside = (weights * same).sum() / weights.sum()
print(f"{100 * inside:.0f} % of all weight stays inside the true groups")
print(np.array2string(weights[:5, :10], precision=2, suppress_small=True))

# %% All of it as a page to click through
from feddwa.report.page import write_report  # noqa: E402

write_report(read([folder]), folder / "report.html")
print(f"open {folder / 'report.html'}")
