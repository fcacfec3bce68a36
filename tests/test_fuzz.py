"""Fuzzing in small: what was found once stays mended, a few cases of every target, and the watch over them works.

`make fuzz` tries many more. How many cases were tried is printed at the end of the tests (tests/conftest.py).
"""

import json
import time
from pathlib import Path

import pytest

from tests.conftest import FUZZED
from tests.fuzz import __main__ as command
from tests.fuzz.attempt import again, attempt
from tests.fuzz.campaign import Campaign, prepared
from tests.fuzz.case import Target
from tests.fuzz.targets import KINDS

FOUND = [json.loads(line) for line in (Path(__file__).parent / "fuzz/findings.jsonl").read_text().splitlines()]
FEW = {"command-line": 14, "configuration": 14, "run-directory": 14, "checkpoints": 10}  # these cost more
MANY = 30


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def target(request, tmp_path_factory) -> Target:
    """A target that is ready; the next one takes its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDDWA_DATA", raising=False)
        patch.setenv("FEDDWA_CACHE", "")
        yield prepared([request.param], tmp_path_factory.mktemp("fuzz"))[request.param.name]


def test_a_few_cases_of_every_target(target):
    """Some are accepted and some refused: one that refuses everything would find nothing."""
    answers = [attempt(target, seed) for seed in range(FEW.get(target.name, MANY))]
    FUZZED[target.name] += len(answers)
    for answer in answers:
        assert not answer.problem, f"make fuzz CASE={answer.name}\n{answer.problem}"
    assert {answer.outcome for answer in answers} == {"accepted", "refused"}


def test_what_was_found_once_stays_mended(target):
    for found in FOUND:
        if found["target"] == target.name:
            FUZZED[target.name] += 1
            answer = again(target, found["case"])
            assert not answer.problem, f"{found['was']}\n{answer.problem}"


class Broken(Target):
    """A program with every kind of fault: by the number of the case."""

    name = "broken"

    def draw(self, rng):
        return {"place": rng.random()}

    def check(self, case):
        if self.seed == 3:
            time.sleep(60)
        while self.seed == 2:
            pass
        assert self.seed == 0, "nonsense"
        return ""


def broken(seed: int, folder: Path):
    """The answer to a case."""
    target = prepared([Broken], folder)["broken"]
    target.seed = seed
    return attempt(target, seed, limit=0.3)


def test_nonsense_and_a_hang_are_findings(tmp_path):
    sound, nonsense, hang = (broken(seed, _new(tmp_path, seed)) for seed in range(3))
    assert (sound.outcome, nonsense.outcome, hang.outcome) == ("accepted", "finding", "finding")
    assert "nonsense" in nonsense.problem
    assert hang.problem == "does not end within 0.3 s of CPU time"
    assert nonsense.case == broken(1, _new(tmp_path, "again")).case


def _new(folder: Path, name: object) -> Path:
    (folder / str(name)).mkdir()
    return folder / str(name)


class Dying(Target):
    """A program that takes its process with it, or sleeps for ever."""

    name = "dying"

    def draw(self, rng):
        return {"dies": rng.random() < 0.5}

    def check(self, case):
        if case["dies"]:
            import os

            os._exit(9)
        time.sleep(600)
        return ""


@pytest.mark.slow
def test_a_process_that_dies_or_sleeps_is_replaced_and_is_a_finding(tmp_path, capsys):
    campaign = Campaign([Dying], 0.4, 0, tmp_path, jobs=2, patience=1.0)
    campaign.run()
    problems = {answer.problem for answer in campaign.answers}
    assert problems == {"its process died (9)", "did not end within 1 s"}
    assert campaign.starts > 2
    assert command.findings(campaign.answers) == 1
    assert "make fuzz CASE=dying:" in capsys.readouterr().out
    kept = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert len(kept) == 2
