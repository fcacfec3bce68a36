"""Files of published results, one line of them damaged, and the commands that read such a file."""

import random
from pathlib import Path

from feddwa.config import RunConfig
from feddwa.results import content, runs
from feddwa.results.record import read
from feddwa.results.store import Store
from tests.fuzz import damage, oracle, place
from tests.fuzz.case import Case, Target

COMMANDS = {
    "leaderboard": ["leaderboard", "new.jsonl"],
    "report": ["report", "new.jsonl", "-o", "new.html"],
    "curves": ["figure", "curves", "new.jsonl", "-o", "new.svg"],
    "pareto": ["figure", "pareto", "new.jsonl", "-o", "new.svg"],
}


class Published(Target):
    """A JSONL file of two methods, one of them with groups and weights."""

    name = "published"

    def prepare(self, folder: Path) -> None:
        """Publish runs, as `feddwa reproduce` does."""
        super().prepare(folder)
        store = Store(Path("store"))
        for algorithm in ("feddwa", "local"):
            options = {"dataset": "digits", "partition": "groups", "clients": 4, "model": "linear"}
            place.finished(Path(algorithm), algorithm=algorithm, **options)
            config = RunConfig(algorithm=algorithm, rounds=place.ROUNDS, device="cpu", **options).resolved()
            weights = list(read([algorithm])[0].weights)
            lines = runs.read_lines(Path(algorithm, runs.METRICS))
            store.save(content.published(runs.read_record(Path(algorithm)), config, weights, lines))
        store.merge()
        (folder / "store/digits.jsonl").rename("sound.jsonl")
        place.clear(folder, {"sound.jsonl"})
        assert oracle.answer(["leaderboard", "sound.jsonl"])[1] == ""

    def draw(self, rng: random.Random) -> Case:
        """An edit, and a command."""
        edit = damage.draw(rng, Path("sound.jsonl").read_bytes(), ".jsonl")
        return {"edit": edit, "command": rng.choice([*["leaderboard"] * 6, *COMMANDS])}

    def check(self, case: Case) -> str:
        """A table of finite numbers, or the line that is damaged."""
        try:
            after = damage.apply(case["edit"], Path("sound.jsonl").read_bytes())
            if after is not None:
                Path("new.jsonl").write_bytes(after)
            _, refusal, out = oracle.answer(COMMANDS[case["command"]])
            oracle.finite_text(out)
            return refusal
        finally:
            place.clear(Path("."), {"sound.jsonl"})
