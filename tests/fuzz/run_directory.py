"""Run directories with one file damaged, and every command that reads one."""

import random
import shutil
from pathlib import Path

from tests.fuzz import damage, oracle, place
from tests.fuzz.case import Case, Target

COMMANDS = {
    "report": ["report", "new", "-o", "new.html"],
    "leaderboard": ["leaderboard", "new", "local"],
    "doctor": ["doctor", "new"],
    "resume": ["resume", "new"],
    "export": ["export", "new", "-o", "models"],
    "predict": ["predict", "new", "tiny.npz"],
    "adapt": ["adapt", "new", "--data", "tiny.npz", "--epochs", "1", "-o", "adapted"],
    "curves": ["figure", "curves", "new", "-o", "new.svg"],
    "weights": ["figure", "weights", "new", "-o", "new.svg"],
    "gain": ["figure", "gain", "new", "local", "-o", "new.svg"],
}
CHEAP = ("leaderboard", "doctor", "resume", "export", "predict", "report")  # drawn more often than what draws


class RunDirectory(Target):
    """A finished run, an interrupted one, or several seeds, of which one file was damaged."""

    name = "run-directory"

    def prepare(self, folder: Path) -> None:
        """What is damaged, and a run of Local to compare it with."""
        super().prepare(folder)
        place.tiny(Path("tiny.npz"))
        place.finished(Path("sound/finished"))
        place.cut(Path("sound/cut"))
        place.finished(Path("sound/seeds"), seeds=(0, 1), algorithm="fedavg")
        place.finished(Path("local"), algorithm="local")
        self.whole = {name: _series(Path("sound/finished")) for name in ("finished", "cut")}
        assert oracle.answer(["resume", "sound/finished"])[1] == ""

    def draw(self, rng: random.Random) -> Case:
        """A run, a file of it, an edit, and a command."""
        kind = rng.choice(["finished", "finished", "cut", "cut", "seeds"])
        folder = Path("sound", kind)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        weights = [1 if "checkpoint" in path.parts else 3 for path in files]
        victim = rng.choices(files, weights)[0]
        edit = damage.draw(rng, victim.read_bytes(), victim.suffix)
        command = rng.choice([*CHEAP, *COMMANDS] if kind != "cut" else ["resume"] * 3 + [*COMMANDS])
        return {
            "kind": kind, "file": str(victim.relative_to(folder)), "edit": edit, "command": command,
            "sums": rng.random() < 0.7,
        }  # fmt: skip

    def check(self, case: Case) -> str:
        """The line names what is damaged; what is accepted has finite numbers."""
        try:
            shutil.copytree(Path("sound", case["kind"]), "new")
            damaged = self._damage(case)
            status, refusal, out = oracle.answer(COMMANDS[case["command"]])
            if refusal:
                return refusal
            oracle.finite_text(out)
            if case["command"] == "resume":
                oracle.sound_run(Path("new"), failed=status == 1)
                if not case["sums"] or case["kind"] == "cut":
                    self._same(case, damaged)
            return ""
        finally:
            place.clear(Path("."), {"tiny.npz", "sound", "local"})

    def _damage(self, case: Case) -> bool:
        """Write the damage; whether the file is another then."""
        victim = next(iter(Path("new").glob(_pattern(case["file"]))), Path("new", case["file"]))
        before = victim.read_bytes() if victim.is_file() else b""
        after = damage.apply(case["edit"], before) if before else None
        victim.unlink(missing_ok=True) if after is None else victim.write_bytes(after)
        sums = victim.parent / "SHA256SUMS"
        if case["sums"] and sums.is_file() and victim.name != "SHA256SUMS":
            damage.resum(victim.parent)
        return before != after

    def _same(self, case: Case, damaged: bool) -> None:
        """A resumed run ends as if nothing had happened, unless what it is was changed in its configuration."""
        if damaged and case["file"] in ("config.toml", "partition.json"):
            return
        if case["kind"] in self.whole:
            found, wanted = _series(Path("new")), self.whole[case["kind"]]
            assert found == wanted, ("another result than the undisturbed run's", found, wanted)


def _pattern(file: str) -> str:
    """Where a file stands; the sum in a checkpoint's name is another one tomorrow."""
    head, dash, _ = file.partition("-")
    return f"{head}-{file.split('-')[1]}-*" if dash and "checkpoint" in head else file.replace("[", "[[]")


def _series(folder: Path) -> str:
    """What clients scored, round by round."""
    return (folder / "clients.jsonl").read_text()
