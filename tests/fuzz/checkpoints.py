"""Checkpoints whose content is another, with the right sum in the name: what only a stranger could put there."""

import hashlib
import random
import shutil
from pathlib import Path

from feddwa import checkpoint
from tests.fuzz import damage, oracle, place
from tests.fuzz.case import Case, Target

ALGORITHMS = ("feddwa", "scaffold", "fedadam")  # server state and memory of several kinds


class Checkpoints(Target):
    """The newest checkpoint of an interrupted run, damaged; half of the cases are given the sum that fits."""

    name = "checkpoints"

    def prepare(self, folder: Path) -> None:
        """Interrupted runs, and their ends."""
        super().prepare(folder)
        place.tiny(Path("tiny.npz"))
        self.ends = {}
        for name in ALGORITHMS:
            place.cut(Path("sound", name), algorithm=name)
            shutil.copytree(Path("sound", name), "new")
            assert oracle.answer(["resume", "new"])[1] == ""
            self.ends[name] = Path("new/clients.jsonl").read_text()
            shutil.rmtree("new")

    def draw(self, rng: random.Random) -> Case:
        """An edit of the checkpoint of an algorithm, and what is done with it."""
        name = rng.choice(ALGORITHMS)
        edit = damage.draw(rng, _newest(Path("sound", name)).read_bytes(), ".safetensors")
        return {"algorithm": name, "edit": edit, "forged": rng.random() < 0.7, "resumed": rng.random() < 0.3}

    def check(self, case: Case) -> str:
        """It is not used, which is said; or it is refused; or the run ends in finite numbers, the right ones unless
        somebody has forged the sum."""
        try:
            shutil.copytree(Path("sound", case["algorithm"]), "new")
            path = _newest(Path("new"))
            before = path.read_bytes()
            after = damage.apply(case["edit"], before)
            path.unlink()
            if after is not None:
                forged = f"{path.name[:12]}-{hashlib.sha256(after).hexdigest()}.safetensors"
                path.with_name(forged if case["forged"] else path.name).write_bytes(after)
            if not case["resumed"]:
                told: list[str] = []
                found = checkpoint.latest(path.parent, told.append)
                damaged = after is not None and not case["forged"] and after != before
                assert len(told) >= damaged, "a damaged checkpoint was used"
                return "; ".join(told) or ("" if found is not None else "no checkpoint")
            status, refusal, out = oracle.answer(["resume", "new"])
            if not refusal:
                oracle.finite_text(out)
                oracle.sound_run(Path("new"), failed=status == 1)
                if not case["forged"]:
                    assert Path("new/clients.jsonl").read_text() == self.ends[case["algorithm"]]
            return refusal
        finally:
            place.clear(Path("."), {"tiny.npz", "sound"})


def _newest(folder: Path) -> Path:
    return max((folder / "checkpoint").glob("round-*"))
