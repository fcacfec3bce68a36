"""P of every round on disk: what is written is what is read, in order, and never all of it in memory."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import feddwa
from feddwa.engine import Cohort, Scores
from feddwa.errors import InputError
from feddwa.federation import Round
from feddwa.ledger import Costs
from feddwa.results import runs
from feddwa.results.weights import as_safetensors, journal_record, read
from feddwa.storage import write_whole
from tests.conftest import finished, no_models

NOBODY = Scores(torch.zeros(0), torch.zeros(0))


def journal(folder: Path, rounds: dict[int, list[int]]) -> dict[int, np.ndarray]:
    """Write a journal; rounds: number -> cohort. Returns number -> P."""
    drawn = {number: torch.rand(len(ids), len(ids), dtype=torch.float64) for number, ids in rounds.items()}
    records = [journal_record(number, torch.tensor(ids), drawn[number]) for number, ids in rounds.items()]
    (folder / "weights.journal").write_bytes(b"".join(records))
    return {number: matrix.numpy().astype(np.float32) for number, matrix in drawn.items()}


def finish(folder: Path) -> Path:
    write_whole(folder / "weights.safetensors", as_safetensors(folder / "weights.journal"))
    (folder / "weights.journal").unlink()
    return folder / "weights.safetensors"


def test_both_files_hold_every_round(tmp_path):
    cohorts = {1: [0, 2, 5], 2: [4], 4: [1, 3]}  # in round 3 nobody took part
    drawn = journal(tmp_path, cohorts)
    for _ in range(2):
        stored = read(tmp_path)
        assert stored.rounds == [1, 2, 4]
        for number, (_, cohort, matrix) in zip(cohorts, stored, strict=True):
            assert cohort.tolist() == cohorts[number]
            assert np.array_equal(matrix, drawn[number])
            assert (cohort.dtype, matrix.dtype) == (np.int64, np.float32)
        assert np.array_equal(stored[-1].matrix, drawn[4])
        assert [cohort.tolist() for _, cohort, _ in stored[1:]] == [[4], [1, 3]]
        with pytest.raises(IndexError):
            stored[3]
        if stored.path.name == "weights.journal":
            finish(tmp_path)
    public = load_file(tmp_path / "weights.safetensors")  # as anybody would read it
    assert set(public) == {f"{kind}/000{number}" for kind in ("weights", "cohort") for number in cohorts}
    assert np.array_equal(public["weights/0004"], drawn[4])
    assert public["cohort/0001"].tolist() == [0, 2, 5]


def test_rounds_past_9999_stay_in_order(tmp_path):
    drawn = journal(tmp_path, {number: [0, 1] for number in range(9_997, 10_003)})
    finish(tmp_path)
    stored = read(tmp_path)
    assert stored.rounds == list(range(9_997, 10_003))
    assert all(np.array_equal(matrix, drawn[number]) for number, (_, _, matrix) in zip(drawn, stored, strict=True))


def test_a_record_that_is_half_written_does_not_count(tmp_path):
    journal(tmp_path, {1: [0, 1], 2: [0, 1]})
    whole = (tmp_path / "weights.journal").read_bytes()
    for missing in range(1, len(whole) // 2):
        (tmp_path / "weights.journal").write_bytes(whole[:-missing])
        assert read(tmp_path).rounds == [1]


def test_a_directory_without_weights(tmp_path):
    assert list(read(tmp_path)) == []
    (tmp_path / "weights.journal").write_bytes(b"")  # a run that has just begun
    assert list(read(tmp_path)) == []
    assert load_file(finish(tmp_path)) == {}
    assert list(read(tmp_path)) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 30, b"\x02\0\0\0\0\0\0\0[]", b"\x02\0\0\0\0\0\0\0{", b"\x09" + bytes(7) + b'{"weights'],
)
def test_a_damaged_file_is_one_line(tmp_path, content):
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"weights.safetensors: is damaged: .+") as error:
        list(read(tmp_path))
    assert "\n" not in str(error.value)
    (tmp_path / "weights.journal").write_bytes(b"\xff" * 40)
    with pytest.raises(InputError, match=r"weights.journal: is damaged: record 1 is none of a round"):
        read(tmp_path)


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_thousand_clients_do_not_fill_the_memory(tmp_path):
    """40 rounds of P (1000, 1000) are 160 MB on disk: no more than a few rounds of it are ever in memory."""
    config = feddwa.RunConfig(out=str(tmp_path / "run"), rounds=40, checkpoint_every=0).resolved()
    ids, size = torch.arange(1000), 4_000_000
    entries, summary = finished(40)
    with runs.RunDirectory.create(config) as directory:
        tracemalloc.start()
        for number in range(1, 41):
            weights = torch.full((1000, 1000), 1e-3, dtype=torch.float64)
            result = Round(Cohort(ids, ids, number, 1000), NOBODY, NOBODY, {"weights": weights}, Costs())
            directory.add(entries[number - 1], {"round": number, "before": [50.0] * 1000}, result)
            if number == 5:
                before = resident()
        directory.finish(entries, summary, {}, no_models())
        total = sum(float(each.matrix.sum()) for each in read(directory.path))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert total == pytest.approx(40 * 1000, rel=1e-4)
    assert (tmp_path / "run" / "weights.safetensors").stat().st_size > 40 * size
    assert peak < 6 * size  # what Python and NumPy had at once
    assert resident() - before < 10 * size  # and the whole process
