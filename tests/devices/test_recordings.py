"""A recording is read as it was written, says where it comes from, and is never half there."""

import datetime
import re

import pytest

from mpcourse.devices.recordings import DATA_FOLDER, read_recording, values_by, write_recording

ROWS = [{"seed": 0, "kind": "a, b", "accuracy": 0.5}, {"seed": 1, "kind": "c", "accuracy": 1e-7}]


def write(folder, rows=ROWS, name="x.csv"):
    return write_recording(name, rows, command="python -m x: y", device="2 cores", folder=folder)


def test_a_recording_is_read_as_it_was_written(tmp_path):
    about, rows = read_recording(write(tmp_path).name, tmp_path)
    assert rows == ROWS
    assert [type(value) for value in rows[0].values()] == [int, str, float]
    assert (about["command"], about["device"]) == ("python -m x: y", "2 cores")
    assert "torch" in about["machine"]
    assert about["date"] == datetime.date.today().isoformat()


def test_any_program_can_read_the_file_below_its_comments(tmp_path):
    lines = write(tmp_path).read_text().splitlines()
    assert [line.startswith("# ") for line in lines] == [True] * 4 + [False] * 3
    assert lines[4:] == ["seed,kind,accuracy", '0,"a, b",0.5', "1,c,1e-07"]


def test_a_file_is_replaced_and_none_is_left_beside_it(tmp_path):
    write(tmp_path)
    write(tmp_path, ROWS[:1])
    assert read_recording("x.csv", tmp_path).rows == ROWS[:1]
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize("rows", [[], [{}], [{"a": 1}, {"b": 1}]])
def test_rows_that_make_no_table_are_refused_before_anything_is_written(tmp_path, rows):
    with pytest.raises(ValueError, match="all rows need the columns of the first"):
        write(tmp_path, rows)
    assert not list(tmp_path.iterdir())


def test_a_recording_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no recording y\.csv; there are: none"):
        read_recording("y.csv", tmp_path)
    write(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no recording y\.csv; there are: x\.csv"):
        read_recording("y.csv", tmp_path)


def test_every_recording_of_the_course_says_how_to_make_it_again():
    for path in DATA_FOLDER.glob("*.csv"):
        about, rows = read_recording(path.name)
        assert set(about) == {"command", "device", "machine", "date"}, path.name
        command = re.fullmatch(r"python data/(\w+\.py)", about["command"])
        assert command, path.name
        assert (DATA_FOLDER / command[1]).is_file(), path.name
        assert rows, path.name


def test_rows_are_grouped_by_columns_in_their_order():
    rows = [
        {"way": "b", "seed": 0, "accuracy": 0.9},
        {"way": "a", "seed": 0, "accuracy": 0.5},
        {"way": "b", "seed": 1, "accuracy": 0.7},
    ]
    assert values_by(rows, "way", of="accuracy") == {("b",): [0.9, 0.7], ("a",): [0.5]}
    assert values_by(rows, "seed", "way", of="accuracy")[1, "b"] == [0.7]
    assert values_by(rows, of="seed") == {(): [0, 0, 1]}
    assert values_by([], "way", of="accuracy") == {}
    with pytest.raises(KeyError, match="colour"):
        values_by(rows, "colour", of="accuracy")
