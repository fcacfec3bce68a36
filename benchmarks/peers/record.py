"""The record of a case, and the table of all of them."""

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ALIKE = ("task", "rounds", "share", "clients", "device", "dtype", "threads", "hardware")  # of cases side by side
COLUMNS = ("task", "library", "s a round", "times ours", "steps/s", "samples/s", "accuracy", "host MiB", "GPU MiB")
COLUMNS += ("set-up s", "evaluation s", "all s", "rounds")


def figures(measured: dict[str, Any], steps: float, samples: float, first: int) -> dict[str, Any]:
    """The measurements, with rates instead of single rounds; the first rounds are dropped."""
    rounds, evaluations = measured["rounds"][first:], measured["evaluations"]
    seconds = statistics.median(rounds)
    others = {key: value for key, value in measured.items() if key not in ("rounds", "steps", "evaluations")}
    return {
        "steps": steps,
        "samples": samples,
        "seconds": seconds,
        "fastest": min(rounds),
        "slowest": max(rounds),
        "steps_per_second": steps / seconds,
        "samples_per_second": samples / seconds,
        "evaluation": statistics.median(evaluations) if evaluations else None,
        **others,
    }


def hardware(device: str) -> str:
    """The GPU's name, or the processor's with the number of cores."""
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def command(words: Sequence[str]) -> str:
    """The command line, without this machine's folders."""
    told = ["DIR" if os.path.isdir(word) else os.path.basename(word) for word in words]
    return " ".join(["python benchmarks/field.py", *told])


def table(cases: Sequence[dict[str, Any]]) -> str:
    """The cases as Markdown, each against ours of the same task, size and hardware."""
    lines = [" | ".join(COLUMNS), " | ".join(["---"] * 2 + ["---:"] * (len(COLUMNS) - 2))]
    for case in cases:
        ours = [each for each in cases if each["library"] == "ours" and all(each[key] == case[key] for key in ALIKE)]
        beside = ours and case["library"] != "ours"
        cells = [case["task"], label(case), f"{case['seconds']:.3g}"]
        cells += [f"{case['seconds'] / ours[-1]['seconds']:.1f}" if beside else ""]
        cells += [f"{case[key]:,.0f}" for key in ("steps_per_second", "samples_per_second")]
        cells += [f"{case['accuracy']:.1f} %", f"{case['host_mib']:,.0f}"]
        cells += ["" if case["device_mib"] is None else f"{case['device_mib']:,.0f}"]
        cells += [f"{case[key]:.1f}" for key in ("setup", "evaluation", "total")]
        lines.append(" | ".join([*cells, str(case["rounds"])]))
    return "\n".join(f"| {line} |" for line in lines)


def label(case: dict[str, Any]) -> str:
    """The library, with its number of processes if above one."""
    return case["library"] + (f", {case['parallel']} processes" if case["parallel"] > 1 else "")
