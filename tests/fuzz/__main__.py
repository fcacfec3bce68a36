"""`python -m tests.fuzz --minutes 10 --seed 1`, or `--case TARGET:SEED` for one case; exit status 1 with findings."""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.attempt import Answer, again, attempt
from tests.fuzz.campaign import Campaign, alike, prepared
from tests.fuzz.targets import TARGETS

FOLDER = Path(__file__).parents[2] / ".fuzz"


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of all cases [another each time]")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--case", help="TARGET:SEED, or a file of .fuzz/findings")
    given = parser.parse_args()
    if given.case:
        return one(given.case)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"fuzz: seed {seed}, {given.minutes:g} minutes, {given.jobs} processes, kept in {FOLDER}", flush=True)
    campaign = Campaign([TARGETS[name] for name in given.targets], given.minutes, seed, FOLDER, given.jobs)
    begun = time.monotonic()
    campaign.run()
    print(table(campaign.answers, time.monotonic() - begun))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of CPU time in all, what is damaged included, which is made first")
    return findings(campaign.answers)


def one(name: str) -> int:
    """Try one case, and show it."""
    kept = json.loads(Path(name).read_text()) if name.endswith(".json") else None
    target, _, seed = (kept["target"], "", "-1") if kept else name.partition(":")
    with tempfile.TemporaryDirectory(prefix="feddwa-fuzz-") as folder:
        made = prepared([TARGETS[target]], Path(folder))[target]
        answer = again(made, kept["case"]) if kept else attempt(made, int(seed))
    print(json.dumps(answer.case, indent=1))
    print(f"{answer.outcome} in {answer.seconds:.2f} s of CPU time: {answer.problem or answer.refusal or 'sound'}")
    return bool(answer.problem)


def table(answers: list[Answer], seconds: float) -> str:
    """Cases per target, and of all."""
    heads = ("target", "cases", "accepted", "refused", "findings", "CPU s", "cases per CPU s")
    rows = [_row(name, [a for a in answers if a.target == name]) for name in dict.fromkeys(a.target for a in answers)]
    rows = [heads, *rows, _row("all", answers)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    slowest = max(answers, key=lambda each: each.seconds, default=None)
    last = f"{seconds:.0f} s; the slowest case took {slowest.seconds:.1f} s: {slowest.name}" if slowest else ""
    return "\n".join([*lines, last])


def _row(name: str, answers: list[Answer]) -> tuple[str, ...]:
    counts, spent = Counter(answer.outcome for answer in answers), sum(answer.seconds for answer in answers)
    outcomes = (f"{counts[outcome]:,}" for outcome in ("accepted", "refused", "finding"))
    return name, f"{len(answers):,}", *outcomes, f"{spent:.0f}", f"{len(answers) / max(spent, 1e-9):.1f}"


def findings(answers: list[Answer]) -> int:
    """Show one of each kind of finding; 1 where there are any."""
    wrong = [answer for answer in answers if answer.problem]
    for like, count in Counter(map(alike, wrong)).items():
        first = next(answer for answer in wrong if alike(answer) == like)
        print(f"\n{first.name}  ({count} alike)   make fuzz CASE={first.name}\n{first.problem.strip()[-1500:]}")
    print("no findings" if not wrong else f"\n{len(wrong)} findings, each in {FOLDER / 'findings'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
