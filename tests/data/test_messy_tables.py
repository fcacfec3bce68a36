"""Tables as people have them: gaps, words, dates, row numbers, odd separators; each case a real file."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feddwa.build import load_task
from feddwa.config import RunConfig
from feddwa.data.federated import federate
from feddwa.data.options import DataOptions
from feddwa.data.partition import make
from feddwa.data.sources import load
from feddwa.errors import InputError
from tests.data.conftest import refuses


def rows(line, count=20):
    """Lines of a table: `line` with i, and with c, which is a or b in turn, filled in."""
    return [line.format(i=i, c="ab"[i % 2], x=i / 10, j=i // 10) for i in range(count)]


@pytest.fixture
def csv(tmp_path):
    """Write the lines of a table; the path of the file."""

    def write(*lines, name="own.csv", end="\n"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(end.join(lines).encode())
        return str(path)

    return write


def read(path, **options):
    return load(str(path), None, DataOptions(**options))


# What is refused: one line that names the file, the column or the row.

SOME = rows("{x},{c}")
REFUSED = {
    "a label column of another name": (["x,outcome", *SOME],
        {}, "'label', the file has x, outcome; name it with --label"),
    "a label column that is not there": (["x,label", *SOME], {"label": "y"}, "no label column; looked for 'y'"),
    "a client column that is not there": (["x,label", *SOME],
        {"client": "site"}, "no client column; looked for 'site'"),
    "a test column that is not there": (["x,label", *SOME], {"test_column": "part"}, "no test column"),
    "a time column that is not there": (["x,label", *SOME], {"time_column": "day"}, "no time column"),
    "a dropped column that is not there": (["x,label", *SOME], {"drop": "x,z"}, "no dropped column; looked for 'z'"),
    "nothing left of the columns": (["x,label", *SOME], {"drop": "x"}, "no feature columns"),
    "a missing number": (["x,z,label", *rows("1,2,{c}"), "3,,a"],
        {}, "row 21 has no value in column 'z'; --impute mean"),
    "missing numbers": (["x,label", *SOME, ",a", ",b", ",a"],
        {}, "row 21 has no value in column 'x' (and 2 other rows)"),
    "a missing word": (["x,w,label", *rows("1,{c},{c}"), "2,,a"], {}, "row 21 has no value in column 'w'"),
    "an infinite number": (["x,label", *SOME, "inf,a"], {}, "row 21 has an infinite value in column 'x'"),
    "a number beyond float32": (["x,label", *SOME, "1e39,a"],
        {"impute": "mean"}, "row 21 has the value 1e+39, beyond 3.4e38, in"),
    "a column without any value": (["x,z,label", *rows("1,,{c}")],
        {}, "column 'z' has no value in any row; --drop z"),
    "a column without any training value": (["x,z,label,t", *rows("1,,{c},0"), "1,2,a,1", "1,2,b,1"],
        {"impute": "mean", "test_column": "t"}, "column 'z' has no value in any training row"),
    "dates": (["day,label", *rows("2026-01-{i:02},{c}", 20)[1:]], {}, "column 'day' holds dates (2026-01-0"),
    "times": (["at,label", *rows("2026-01-01 10:{i:02}:00,{c}")], {}, "--drop at, or --time-column at"),
    "dates as text": (["day,label", *rows("{i}.1.2026,{c}")[1:]], {}, "column 'day' holds dates (1"),
    "dates as labels": (["x,label", *rows("1,2026-01-1{j}")], {}, "column 'label' holds dates;"),
    "words of many kinds": (["w,label", *rows("w{i},{c}", 60), *rows("w{i},{c}", 60)],
        {}, "different texts, more than 20"),
    "words beyond a bound": (["w,label", *rows("w{j},{c}", 40)],
        {"max_categories": 3}, "4 different texts, more than 3"),
    "a name in every row": (["name,label", *rows("n{i},{c}", 10)], {}, "'name' has a different text in every row"),
    "a question mark among numbers": (["x,label", *SOME, "?,a"],
        {}, "row 21: '?' in column 'x' is not a number; leave the cell empty"),
    "commas for thousands": (["x,label", *rows('"{i},000",{c}')], {}, "and thousands without a sign"),
    "decimal commas": (["x;label", *rows("{i},5;{c}")],
        {}, "in column 'x' is not a number; write decimals with a point"),
    "a row that is too short": (["x,z,label", *rows("1,2,{c}"), "1,2"], {}, "Row #22: Expected 3 columns, got 2"),
    "a row that is too long": (["x,label", *SOME, "1,2,3"], {}, "Row #22: Expected 2 columns, got 3"),
    "a label that is missing": (["x,label", *SOME, "3,"], {}, "row 21 has no label"),
    "a client that is missing": (["x,label,client", *rows("{i},{c},{c}"), "3,a,"], {}, "row 21 has no client"),
    "a column twice, but for spaces": (["x, x,label", *rows("1,2,{c}")], {}, "2 columns are named 'x'"),
    "a mark that is none": (["x,label,part", *rows("1,{c},test"), "1,a,maybe"],
        {"test_column": "part"}, "row 21: 'maybe' in column 'part'"),
    "marks of two test parts": (["x,label,part", "1,a,train", "1,b,val", "1,a,test"],
        {"test_column": "part"}, "marks rows as test and as val; only one of them can test"),
    "all rows to test": (["x,label,part", *rows("1,{c},test")], {"test_column": "part"}, "marks all rows as test"),
    "no rows to test": (["x,label,part", *rows("1,{c},0")], {"test_column": "part"}, "marks no rows as test"),
    "a time that is missing": (["x,t,label", *rows("1,{i},{c}"), "1,,a"],
        {"time_column": "t"}, "row 21 has no time in column 't'"),
    "a time that is none": (["x,t,label", *rows("1,{c},{c}")],
        {"time_column": "t"}, "row 1: 'a' in column 't' is no time"),
    "small clients": (["x,label,client", *rows("1,{c},big"), "1,a,small"],
        {}, "client small has 1 sample, must be at least 2 (train and test); --min-samples 2"),
    "clients of one row each": (["x,label,client", *rows("1,{c},{i}")],
        {}, "client 0 (and 19 other clients) has 1 sample"),
    "owners with a capital": (["x,label,Client", *rows("1,{c},{c}")],
        {}, "column 'Client' seems to say whose row it is; --client Client"),
    "owners with a number": (["x,label,client_id", *rows("1,{c},{j}")], {}, "--drop client_id leaves it out"),
    "a single row": (["x,label", "1,a"], {}, "has 1 row, must be at least 2"),
    "small clients that may not be": (["x,label,client", *rows("1,{c},big"), *rows("1,{c},tiny", 3)],
        {"min_samples": 9, "small_clients": "refuse"}, "1 of 2 clients of"),
    "small clients all": (["x,label,client", *rows("1,{c},{c}")], {"min_samples": 11}, "2 of 2 clients of"),
    "a least size without clients": (["x,label", *SOME], {"min_samples": 3}, "--min-samples:"),
    "options of images": (["x,label", *SOME], {"resize": "8"}, "--resize: has no effect on"),
    "options of broken images": (["x,label", *SOME], {"skip_broken": True}, "--skip-broken: has no effect on"),
    "one column of labels and owners": (["x,label", *SOME],
        {"client": "label"}, "--client label: is the column of --label, too"),
    "one column of labels and time": (["x,label", *SOME],
        {"time_column": "label"}, "--time-column label: is the column of --label, too"),
    "labels left out": (["x,label", *SOME], {"drop": "label"}, "--drop label: is the column of --label"),
    "named owners left out": (["x,c,label", *rows("1,{c},{c}")],
        {"client": "c", "drop": "c"}, "--drop c: is the column of --client"),
    "signs for thousands": (["x,label", *rows('"{i},001.5",{c}')],
        {}, "row 1: '0,001.5' in column 'x' is not a number; write it without signs for thousands"),
    "shares": (["x,label", *rows("{i} %,{c}")], {}, "row 1: '0 %' in column 'x' is not a number; write it without"),
    "no header": (["1,2,0", *rows("1,2,{i}")], {}, "the first line is 1,2,0; it must name the columns"),
    "no header, and a number as the label": (["1,2,0", *rows("1,2,{i}")], {"label": "0"}, "the first line is 1,2,0;"),
    "a header alone": (["x,label"], {}, "own.csv: no rows"),
    "nothing": ([""], {}, "not a readable table"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused_in_one_line(case, csv):
    lines, options, words = REFUSED[case]
    refuses(csv(*lines), "own.csv" if not words.startswith("--") else "", words, **options)


def test_an_error_is_not_wrapped_into_another(tmp_path):
    (tmp_path / "own.csv").write_bytes("größe,label\n1,0\n".encode("latin-1"))
    with pytest.raises(InputError) as error:
        read(tmp_path / "own.csv")
    assert str(error.value) == f"{tmp_path}/own.csv: line 1 is not UTF-8 text; save the file in that encoding"


# What is read.


def test_owners_that_nobody_named_may_be_left_out(csv):
    data = read(csv("x,client,label", *rows("{x},{c},{c}")), drop="client")
    assert data.client is None
    assert data.shape == (1,)


def test_columns_have_any_names(csv):
    path = csv("width,outcome,site,part", *rows("{i},{c},s{j},0"), *rows("9,{c},s{j},1"))
    data = read(path, label="outcome", client="site", test_column="part")
    assert (data.class_names, data.client_names, data.train_count, len(data.x)) == (("a", "b"), ("s0", "s1"), 20, 40)
    assert (data.x[20:] == 9).all()
    assert (data.form.label, data.form.unused) == ("outcome", ("site", "part"))


@pytest.mark.parametrize(
    ("marks", "train"), [(("train", "test"), 10), (("0", "1"), 10), (("false", "true"), 10), (("training", "val"), 10)]
)
def test_a_column_marks_the_test_rows(csv, marks, train):
    lines = [f"{i},{'ab'[i % 2]},{marks[i >= 10]}" for i in range(14)]
    data = read(csv("x,label,part", *lines), test_column="part")
    assert data.train_count == train
    assert sorted(data.x[train:, 0].tolist()) == [10, 11, 12, 13]


@pytest.mark.parametrize("first", ["", "Unnamed: 0", "index", "id"])
@pytest.mark.parametrize("begin", [0, 1])
def test_a_column_that_counts_the_rows_is_left_out(csv, first, begin):
    data = read(csv(f"{first},x,label", *(f"{begin + i},{i % 7},{i % 2}" for i in range(20))))
    assert data.x.shape == (20, 1)
    assert data.notes == (f"column {first!r} counts the rows, left out",)


def test_a_column_that_only_looks_like_it_is_kept(csv):
    data = read(csv("id,x,label", *(f"{i * 2},{i},{i % 2}" for i in range(20))))
    assert (data.x.shape, data.notes) == ((20, 2), ())
    data = read(csv("dose,label", *rows("{i},{c}")))
    assert data.x.shape == (20, 1)


def test_features_are_standardised_with_training_rows_alone(csv):
    lines = [f"{i},5,{'ab'[i % 2]},0" for i in range(20)] + ["1000,5,a,1", "1000,5,b,1"]
    data = read(csv("x,same,label,t", *lines), test_column="t")
    assert data.mean == pytest.approx((9.5, 5))
    assert data.std == pytest.approx((np.arange(20).std(), 1))  # what never changes is not divided by zero
    federated = federate(data, make("iid", {}, data, 1, 0), "cpu")
    x = federated.batch(federated.splits["train"].index[0], federated.scale.dtype).x
    assert x.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert x[:, 0].std(correction=0).item() == pytest.approx(1)
    assert read(csv("x,same,label,t", *lines), test_column="t", standardise=False).mean == ()


def test_large_numbers_keep_their_spread(csv):
    data = read(csv("x,label", *(f"{1_000_000 + i % 2},{'ab'[i % 2]}" for i in range(20))))
    assert data.std == pytest.approx((0.5,))


def test_missing_numbers_become_the_mean_of_training_rows(csv):
    lines = [f"{i},{'ab'[i % 2]},0" for i in range(10)] + [",a,0", "100,b,1", ",a,1"]
    data = read(csv("x,label,t", *lines), test_column="t", impute="mean")
    assert data.x[10, 0] == data.x[12, 0] == 4.5
    assert data.notes == ("missing values filled in, in columns 'x' (2)",)
    assert data.form.columns[0].fill == 4.5


def test_missing_words_become_the_most_frequent_one(csv):
    data = read(csv("w,x,label", *rows("u,1,{c}", 8), *rows("v,1,{c}", 4), ",1,a"), impute="mean")
    assert data.form.columns[0].categories == ("u", "v")
    assert data.x[:, :2].sum() == 13
    assert data.x[:, 0].sum() == 9


def test_rows_with_gaps_are_left_out(csv):
    data = read(csv("x,label,client", *rows("{i},{c},s{j}"), ",a,s0", "1,,s0", "1,a,", "nan,b,s1"), impute="drop")
    assert (len(data.x), data.client_names) == (20, ("s0", "s1"))
    assert data.notes == ("4 of 24 rows have missing values, left out",)


def test_words_become_one_input_each(csv):
    data = read(csv("x,colour,label", *(f"{i},{'rgb'[i % 3]},{i % 2}" for i in range(30))))
    assert data.x.shape == (30, 4)
    assert (data.x[:, 1:].sum(axis=1) == 1).all()
    assert np.array_equal(data.x[:, 1:].argmax(axis=1), np.array([2, 1, 0])[data.x[:, 0].astype(int) % 3])
    assert (data.mean[1:], data.std[1:]) == ((0, 0, 0), (1, 1, 1))


def test_a_word_that_only_test_rows_have_is_all_zeros_and_told(csv):
    data = read(csv("w,label,t", *rows("{c},{c},0"), "new,a,1", "a,b,1"), test_column="t")
    assert data.x[20:].tolist() == [[0, 0], [1, 0]]
    assert data.notes == (
        "one input for each word in columns 'w' (a, b)",
        "column 'w': 1 row with a value that no training row has ('new'), all of its inputs are 0 there",
    )


def test_float_classes_truth_values_and_text_are_classes(csv, tmp_path):
    assert read(csv("x,label", *(f"{i},{i % 3}.0" for i in range(12)))).class_names == ("0", "1", "2")
    assert read(csv("x,label", *(f"{i},{'yes' if i % 3 else 'no'}" for i in range(12)))).class_names == ("no", "yes")
    pq.write_table(pa.table({"x": np.arange(10.0), "label": [True, False] * 5}), tmp_path / "own.parquet")
    assert read(tmp_path / "own.parquet").class_names == ("False", "True")


@pytest.mark.parametrize(("name", "between"), [("own.tsv", "\t"), ("own.csv", ";"), ("own.csv", "\t")])
def test_other_separators(csv, name, between):
    lines = [line.replace(",", between) for line in ["x,z,label", *rows("{x},{i},{c}")]]
    assert read(csv(*lines, name=name)).x.shape == (20, 2)


def test_spaces_in_the_header_and_windows_line_ends(csv):
    data = read(csv("x, site, outcome", *rows("{i}, s{j}, {c}"), end="\r\n"), label="outcome", client="site")
    assert (data.class_names, data.client_names, data.x.shape) == (("a", "b"), ("s0", "s1"), (20, 1))


def test_a_column_whose_first_megabyte_is_whole_numbers(csv):
    data = read(csv("x,label", *(f"1000000{i % 10},{i % 2}" for i in range(110_000)), "0.5,1"))
    assert data.x.min() == 0.5


def test_the_last_rows_of_each_client_are_held_out(csv):
    path = csv("x,label,client", *(f"{i},{i % 2},s{i % 2}" for i in range(40)))
    data = read(path, split="time")
    train, test = data.x[: data.train_count, 0], data.x[data.train_count :, 0]
    for client in (0, 1):
        mine = data.client[: data.train_count] == client
        assert train[mine].max() < test[data.client[data.train_count :] == client].min()
    assert (data.train_count, len(test)) == (32, 8)
    assert read(path, split="random").x[32:, 0].min() < 30


@pytest.mark.parametrize("form", ["{k}", "2026-01-{k:02}", "2026-01-01 00:00:{k:02}", "{k}.5"])
def test_a_time_column_orders_the_rows_and_is_no_feature(csv, form):
    lines = [f"{19 - i},{'ab'[i % 2]},{form.format(k=i + 1)}" for i in range(20)]
    data = read(csv("x,label,when", *(lines[i] for i in np.random.default_rng(0).permutation(20))), time_column="when")
    assert data.x.shape == (20, 1)
    assert data.x[:, 0].tolist() == list(range(19, -1, -1))
    assert data.train_count == 16


def test_small_clients_are_left_out_and_named(csv):
    path = csv("x,label,client", *rows("1,{c},big"), "1,a,one", "1,b,two", "2,a,two")
    data = read(path, min_samples=5)
    assert data.client_names == ("big",)
    assert data.notes == ("2 of 3 clients have too few samples, left out: one (1), two (2)",)


def test_clients_without_a_test_row_are_left_out_with_the_small_ones(csv):
    lines = [*rows("1,{c},big,0"), *rows("1,{c},big,1"), *rows("1,{c},blind,0")]
    path = csv("x,label,client,t", *lines)
    assert read(path, test_column="t", min_samples=2).client_names == ("big",)
    with pytest.raises(InputError, match="client blind has no test sample"):
        load_task(RunConfig(dataset=path, test_column="t").resolved())


# Several files.


def test_every_file_of_a_folder_is_a_client(csv, tmp_path):
    for name in ("hospital-1", "hospital-2", "hospital-10"):
        csv("x,label", *rows("{i},{c}"), name=f"sites/{name}.csv")
    data = read(tmp_path / "sites")
    assert data.client_names == ("hospital-1", "hospital-10", "hospital-2")
    assert data.notes == ("clients are the files: hospital-1, hospital-10, hospital-2",)
    csv("x,z,label", *rows("{i},1,{c}"), name="sites/hospital-3.csv")
    refuses(tmp_path / "sites", "hospital-3.csv: not like", "it has a column 'z'")
    csv("z,label", *rows("{i},{c}"), name="sites/hospital-3.csv")
    refuses(tmp_path / "sites", "hospital-3.csv: not like", "it has no column 'x'")
    csv("x,label", *rows("w{j},{c}"), name="sites/hospital-3.csv")
    refuses(tmp_path / "sites", "hospital-3.csv: column 'x' holds string, in", "it holds int64")


@pytest.mark.parametrize("names", [("train.csv", "test.csv"), ("train/a.csv", "test/a.csv"), ("train.tsv", "val.tsv")])
def test_train_and_test_tables(csv, tmp_path, names):
    for name, level in zip(names, ("1", "2"), strict=True):
        between = "\t" if name.endswith("tsv") else ","
        csv(*(line.replace(",", between) for line in ["x,label", *rows(level + ",{c}")]), name=f"own/{name}")
    data = read(tmp_path / "own")
    assert (data.train_count, data.client) == (20, None)
    assert (data.x[:20] == 1).all()
    assert (data.x[20:] == 2).all()
    refuses(tmp_path / "own", "--split:", "has a test part of its own", split="time")


def test_clients_of_train_and_test_folders(csv, tmp_path):
    for part in ("train", "test"):
        for site in ("s1", "s2"):
            csv("x,label", *rows("{i},{c}", 10 if part == "train" else 4), name=f"own/{part}/{site}.csv")
    data = read(tmp_path / "own")
    assert (data.client_names, data.train_count, len(data.x)) == (("s1", "s2"), 20, 28)


def test_columns_of_files_may_be_in_another_order_and_of_other_numbers(csv, tmp_path):
    csv("x,z,label", *rows("{i},1,{c}"), name="own/s1.csv")
    csv("z,x,label", *rows("0.5,{i},{c}"), name="own/s2.csv")
    data = read(tmp_path / "own")
    assert sorted(set(data.x[:, 1].tolist())) == [0.5, 1]


# The form: new rows are read as the training rows were.


def test_new_rows_are_read_in_the_same_form(csv, tmp_path):
    data = read(
        csv("id,x,w,label,client", *(f"{i},{i},{'uv'[i % 2]},{'ab'[i % 2]},s{i % 2}" for i in range(20))), impute="mean"
    )
    form = type(data.form).from_json(data.form.as_json())
    assert form == data.form
    new = form.read(csv("w,x,label", "v,3,b", "new,,a", name="new.csv"))
    assert new.x.tolist() == [[3, 0, 1], [data.form.columns[0].fill, 0, 0]]
    assert (new.y.tolist(), new.names) == ([1, 0], ("new.csv row 1", "new.csv row 2"))
    unlabelled = form.read(csv("x,w", "1,u", name="new.csv"))
    assert (unlabelled.x.tolist(), unlabelled.y) == ([[1, 1, 0]], None)
    with pytest.raises(InputError, match="no feature column; looked for 'w', the file has x"):
        form.read(csv("x", "1", name="new.csv"))
    with pytest.raises(InputError, match="label 'z' is not among the classes a, b"):
        form.read(csv("x,w,label", "1,u,z", name="new.csv"))
    with pytest.raises(InputError, match="column 'x' holds string; must be numbers, as in training"):
        form.read(csv("x,w", "one,u", name="new.csv"))


# The cache.


def test_tables_are_read_once_and_found_by_content_and_options(csv, own_cache, monkeypatch):
    path = csv("x,label", *rows("{i},{c}"))
    first = read(path)
    monkeypatch.setattr("feddwa.data.tables.read_table", lambda *_, **__: pytest.fail("read again"))
    again = read(path)
    assert isinstance(again.x, np.memmap)
    assert (again.form, again.mean, again.name) == (first.form, first.mean, path)
    monkeypatch.undo()
    monkeypatch.setenv("FEDDWA_CACHE", str(own_cache))
    assert read(path, standardise=False).mean == ()
    csv("x,label", *rows("7,{c}"))
    assert (read(path).x == 7).all()
    assert len(list(own_cache.iterdir())) == 3


def test_suffixes_in_capitals(csv, tmp_path):
    assert read(csv("x,label", *SOME, name="OWN.CSV")).x.shape == (20, 1)
    csv("x,label", *SOME, name="both/Train.CSV")
    csv("x,label", *SOME[:4], name="both/Test.CSV")
    both = read(tmp_path / "both")
    assert (both.train_count, len(both.x)) == (20, 24)


def test_a_separator_inside_a_quoted_name(csv):
    data = read(csv('"size, cm";outcome;site', *rows("{x};{c};s{j}")), label="outcome", client="site")
    assert (data.shape, data.client_names) == ((1,), ("s0", "s1"))


def test_a_comma_behind_every_row_makes_no_column(csv):
    data = read(csv("x,label,", *rows("{x},{c},")))
    assert data.shape == (1,)
    assert data.notes == ("a column without a name is empty, left out",)


def test_doubtful_names_are_told(csv):
    lines = [f"{i},{('Good', 'good', 'bad')[i % 3]},{('NA', 'DE')[i % 2]}" for i in range(12)]
    assert read(csv("x,label,client", *lines)).notes == (
        "labels that differ in upper and lower case alone: Good and good",
        "client 'NA' is a name; where a value is missing, leave the cell empty",
    )


def test_a_class_that_is_only_tested_is_told(csv):
    data = read(csv("x,label,t", *rows("{x},{c},0"), "1,new,1", "1,a,1"), test_column="t")
    assert data.notes == ("1 label that only test samples have: new",)


def test_what_a_folder_of_tables_has_besides_is_told(csv, tmp_path):
    for name in ("north", "south"):
        csv("x,label", *SOME, name=f"sites/{name}.csv")
    (tmp_path / "sites" / "west.xlsx").write_bytes(b"a spreadsheet")
    data = read(tmp_path / "sites")
    assert data.notes == ("1 file passed over: .xlsx (1)", "clients are the files: north, south")


def test_a_folder_with_a_training_and_a_test_table_for_each_client(csv, tmp_path):
    for name, count in (("north", 20), ("south", 10)):
        csv("x,label", *SOME[:count], name=f"sites/{name}/train.csv")
        csv("x,label", *SOME[:4], name=f"sites/{name}/test.csv")
    data = read(tmp_path / "sites")
    assert data.client_names == ("north", "south")
    assert (data.train_count, np.bincount(data.client).tolist()) == (30, [24, 14])
    (tmp_path / "sites" / "north").rename(tmp_path / "sites" / "west")
    assert read(tmp_path / "sites").client_names == ("south", "west")  # and not what the cache has under the old name


def test_of_two_test_folders_one_is_used(csv, tmp_path):
    for part, count in (("Training", 20), ("test", 6), ("val", 8)):
        for name in ("north", "south"):
            csv("x,label", *SOME[:count], name=f"sites/{part}/{name}.csv")
    data = read(tmp_path / "sites")
    assert (data.train_count, len(data.x)) == (40, 52)
    assert data.notes[0] == "2 files passed over: .csv (2)"


def classes_of(csv, labels, **options):
    path = csv("x,label", *(f"{i},{label}" for i, label in enumerate(labels)))
    return load_task(RunConfig(dataset=path, **options).resolved()).dataset.classes


def test_labels_of_which_most_are_different_are_no_classes(csv):
    prices = [1000 + 37 * i for i in range(40)]
    with pytest.raises(InputError, match="40 different labels in 40 samples are no classes; --label names another"):
        classes_of(csv, prices)
    assert classes_of(csv, prices, loss="mse") == 0
    assert classes_of(csv, prices, loss="cross-entropy") == 40
    assert classes_of(csv, [i // 2 for i in range(40)]) == 20
    assert classes_of(csv, range(10)) == 10  # of a dozen rows nothing can be told


def test_names_that_pandas_gives_to_columns_without_one(csv):
    assert read(csv("0,1,2", *rows("1,{x},{c}")), label="2").shape == (2,)
