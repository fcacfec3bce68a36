"""Start-up time of commands that do not train, against `python -c pass`: python benchmarks/startup.py [REPEATS]

The best of several runs of a process each, in turn: CPU time (user and system) and wall time. No command may import
torch (tests/test_startup.py), which takes seconds.
"""

import os
import resource
import subprocess
import sys
import time

COMMANDS = (
    "--help",
    "--version",
    "run --help",
    "list algorithms",
    "list algorithms fedprox",
    "list datasets --json",
    "list models",
    "list partitions",
    "quickly",
    "run --speed 3",
    "run --rounds soon",
    "run --rounds 0",
    "run --algorithm magic",
    "run --dataset nowhere",
    "run --partition fair",
    "run --model huge",
    "compare --algorithms feddwa magic",
)


def measured(arguments: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = {"python -c pass": ["-c", "pass"]}
    cases |= {f"feddwa {command}": ["-m", "feddwa", *command.split()] for command in COMMANDS}
    found = {name: [] for name in cases}
    for _ in range(repeats):
        for name, arguments in cases.items():
            found[name].append(measured(arguments))
    best = {name: [min(values) for values in zip(*runs, strict=True)] for name, runs in found.items()}
    empty = best["python -c pass"]
    print("| command | CPU | ratio | wall | ratio |\n| --- | --- | --- | --- | --- |")
    for name, (cpu, wall) in best.items():
        print(f"| `{name}` | {cpu:.3f} s | {cpu / empty[0]:.1f} | {wall:.3f} s | {wall / empty[1]:.1f} |")


if __name__ == "__main__":
    main()
