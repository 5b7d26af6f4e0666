"""What stands under its name is whole; one writer at a time; refusals of the disk in words. Faults: test_faults.py."""

import errno
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from ehd_hf.files import (
    MANIFEST,
    CannotWrite,
    Damaged,
    append_row,
    check_manifest,
    digest,
    folder_replaced_when_done,
    holds_nothing,
    identity,
    locked,
    make_folder,
    put_files,
    read_json,
    read_rows,
    remove_folder,
    replaced_when_done,
    write_json,
    write_manifest,
    write_text,
)
from helpers import largest_file

ROWS = [{"model": "a|b", "nll": 2.456, "num_events": 12345}, {"model": "ü", "nll": None}]


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- files and folders


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file.txt"
    file.write_text("old")
    file.chmod(0o640)
    with pytest.raises(KeyboardInterrupt), replaced_when_done(file) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert file.read_text() == "old" and tree(tmp_path) == ["file.txt"]
    with replaced_when_done(file) as partial:
        partial.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new" and tree(tmp_path) == ["file.txt"] and file.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_one_and_a_device_is_written_to(tmp_path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "a" / "b" / "file.txt")
    write_text(tmp_path / "link.txt", "text")  # folders above are made
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "a" / "b" / "file.txt").read_text() == "text"
    write_text("/dev/null", "text")
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize("old", ["nothing", "folder", "file"])
def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path, old):
    folder = tmp_path / "folder"
    if old == "folder":
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "old.txt").write_text("old")
    elif old == "file":
        folder.write_text("old")
    before = tree(tmp_path)
    with pytest.raises(KeyboardInterrupt), folder_replaced_when_done(folder) as partial:
        (partial / "new.txt").write_text("half")
        raise KeyboardInterrupt
    assert tree(tmp_path) == before
    with folder_replaced_when_done(folder) as partial:
        (partial / "new.txt").write_text("new")
        assert [name for name in tree(tmp_path) if not name.startswith(".")] == before
    assert tree(tmp_path) == ["folder", "folder/new.txt"]


def test_what_a_killed_writer_left_is_cleared_away_by_the_next(tmp_path):
    (tmp_path / ".file.txt.partial").write_text("half of something much longer")
    (tmp_path / ".folder.partial" / "inner").mkdir(parents=True)
    (tmp_path / ".folder.partial" / "inner" / "half.txt").write_text("half")
    with replaced_when_done(tmp_path / "file.txt") as partial, open(partial, "a") as file:
        file.write("new")
    with folder_replaced_when_done(tmp_path / "folder") as partial:
        (partial / "new.txt").write_text("new")
    assert tree(tmp_path) == ["file.txt", "folder", "folder/new.txt"] and (tmp_path / "file.txt").read_text() == "new"


def test_a_folder_with_leftovers_only_holds_nothing(tmp_path):
    assert holds_nothing(tmp_path) and holds_nothing(tmp_path / "missing")
    (tmp_path / "inner" / ".step.partial").mkdir(parents=True)
    (tmp_path / "inner" / ".step.partial" / "half.txt").write_text("half")
    (tmp_path / ".plan.json.partial").write_text("half")
    assert holds_nothing(tmp_path)
    (tmp_path / "inner" / "step.txt").write_text("whole")
    assert not holds_nothing(tmp_path) and not holds_nothing(tmp_path / "inner" / "step.txt")


def test_a_folder_is_removed_with_what_is_left_of_an_earlier_removal(tmp_path):
    for name in ("gone", ".gone.partial", ".also.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.txt").write_text("text")
    for name in ("gone", "also", "never"):
        remove_folder(tmp_path / name)
    assert tree(tmp_path) == []


def test_config_and_manifest_of_a_model_are_the_last_put_in_place(tmp_path, monkeypatch):
    for name in ("config.json", "model.safetensors", "README.md"):
        make_folder(tmp_path / "made")
        (tmp_path / "made" / name).write_text(name)
    order, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda one, other: (order.append(other.name), replace(one, other)))
    put_files(tmp_path / "made", tmp_path / "model")
    assert order == ["README.md", "model.safetensors", "config.json", MANIFEST]
    assert tree(tmp_path / "model") == ["README.md", MANIFEST, "config.json", "model.safetensors"]


# --- one writer at a time

HOLD = """
import sys
from ehd_hf import files
with getattr(files, sys.argv[1])(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("hold", [locked, replaced_when_done, folder_replaced_when_done])
def test_a_second_writer_is_refused_until_the_first_is_killed(tmp_path, hold):
    place = tmp_path / "place"
    name = "folder_replaced_when_done" if hold is folder_replaced_when_done else hold.__name__
    if hold is locked:
        place.mkdir()
    command = [sys.executable, "-c", HOLD, name, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            before = tree(tmp_path)
            with pytest.raises(ValueError, match="one writer at a time; another run.*another place"), hold(place):
                pass
            assert tree(tmp_path) == before
        finally:
            other.kill()
    with hold(place) as partial:
        if hold is replaced_when_done:
            partial.write_text("new")


def test_a_file_that_was_locked_for_nothing_is_not_left_behind(tmp_path):
    with locked(tmp_path / "rows.jsonl"):
        with pytest.raises(ValueError, match="one writer"), locked(tmp_path / "rows.jsonl"):
            pass
    assert tree(tmp_path) == []
    with locked(tmp_path / "rows.jsonl"):
        append_row(tmp_path / "rows.jsonl", ROWS[0])
    assert read_rows(tmp_path / "rows.jsonl") == ROWS[:1]


def test_a_disk_that_turns_read_only_is_told_and_the_lock_is_given_back(tmp_path, monkeypatch):
    rows, sync, unlink = tmp_path / "rows.jsonl", os.fsync, os.unlink

    def refuse(*args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(rows))

    for name in ("fsync", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(CannotWrite, match=r"rows.jsonl must be in a place you may write to.*repeat the command"):
        with locked(rows):
            append_row(rows, ROWS[0])
    monkeypatch.setattr(os, "fsync", sync), monkeypatch.setattr(os, "unlink", unlink)
    assert read_rows(rows) == []  # the empty file could not be removed, and holds nobody up
    with locked(rows):
        append_row(rows, ROWS[1])
    assert read_rows(rows) == ROWS[1:]


# --- rows


def test_rows_come_back_as_written_and_a_line_cut_short_is_replaced(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == []
    append_row(path, ROWS[0])
    whole = path.read_bytes()
    for cut in range(1, len(json.dumps(ROWS[1]))):  # a kill in the middle of a write, anywhere, of a letter too
        line = json.dumps(ROWS[1], ensure_ascii=False).encode()
        path.write_bytes(whole + line[:cut])
        assert read_rows(path) == ROWS[:1]
    append_row(path, ROWS[1])
    assert read_rows(path) == ROWS
    assert path.read_text().count("\n") == 2


def test_a_row_that_json_cannot_hold_leaves_the_file_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_row(path, ROWS[0])
    with pytest.raises(ValueError):
        append_row(path, {"nll": float("nan")})
    assert read_rows(path) == ROWS[:1]


@pytest.mark.parametrize(
    "content, said", [(b'{"a": 1}\nhello\n', "line 2 is none"), (b"\xff\xfe\n", "line 1 is none"), (None, "a folder")]
)
def test_a_file_that_is_no_row_file_is_refused(tmp_path, content, said):
    path = tmp_path / "notes.txt"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read_rows(path)


# --- refusals


WRITERS = {
    "python": lambda path: path.write_text("x" * 5000),
    "safetensors": lambda path: save_file({"x": torch.zeros(5000)}, path),
    "arrow": lambda path: pq.write_table(pa.table({"x": list(map(str, range(5000)))}), path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_told_and_the_old_is_intact(tmp_path, write):
    file, folder, rows = tmp_path / "file", tmp_path / "folder", tmp_path / "rows.jsonl"
    file.write_text("old")
    folder.mkdir()
    append_row(rows, ROWS[0])
    before = tree(tmp_path)
    with largest_file(2000):
        with pytest.raises(CannotWrite, match="no space left to write.*file.*Free some space.*repeat") as told:
            with replaced_when_done(file) as partial:
                write(partial)
        assert told.value.errno == errno.EFBIG
        with pytest.raises(CannotWrite, match="no space left to write.*folder"):
            with folder_replaced_when_done(folder) as partial:
                write(partial / "file")
        with pytest.raises(CannotWrite, match="no space left to write.*rows.jsonl"):
            append_row(rows, {"text": "x" * 5000})
    assert file.read_text() == "old" and tree(tmp_path) == before and read_rows(rows) == ROWS[:1]
    append_row(rows, ROWS[1])
    assert read_rows(rows) == ROWS


def test_something_in_the_way_is_told(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for attempt in (
        lambda: make_folder(tmp_path / "file"),
        lambda: write_text(tmp_path / "file" / "inner.txt", "text"),
        lambda: write_text(tmp_path / "folder", "text"),
        lambda: append_row(tmp_path / "folder", ROWS[0]),
    ):
        with pytest.raises(CannotWrite, match="where something else stands.*Choose another name"):
            attempt()
    assert (tmp_path / "file").read_text() == "mine" and tree(tmp_path) == ["file", "folder"]


def test_a_place_one_may_not_write_to_is_told():
    with pytest.raises(CannotWrite, match="/proc/.*(must be in a place you may write to|could not be written)"):
        write_text("/proc/ehd_hf.txt", "text")  # not even the superuser


def test_an_error_of_what_is_being_computed_is_not_taken_for_the_disk_s(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), replaced_when_done(tmp_path / "file.txt"):
        open(tmp_path / "elsewhere" / "events.csv")
    assert tree(tmp_path) == []


# --- digests


@pytest.fixture
def listed(tmp_path):
    """A folder of two files and their manifest."""
    folder = tmp_path / "listed"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(f"{name} {name}")
    write_manifest(folder)
    return folder


def test_a_manifest_is_what_sha256sum_reads(listed):
    command = ["sha256sum", "--check", "--strict", MANIFEST]
    subprocess.run(command, cwd=listed, check=True, capture_output=True)
    assert check_manifest(listed) == ["config.json", "model.safetensors"]
    assert check_manifest(listed, ["*.json", "reading.json"]) == ["config.json"]
    (listed / MANIFEST).unlink()
    assert check_manifest(listed) == []


def _flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "flipped": _flip,
    "cut short": lambda file: os.truncate(file, 5),
    "emptied": lambda file: os.truncate(file, 0),
    "deleted": os.unlink,
    "a folder": lambda file: (os.unlink(file), file.mkdir()),
    "a pipe": lambda file: (os.unlink(file), os.mkfifo(file)),
    "a loop": lambda file: (os.unlink(file), file.symlink_to(file)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_file_that_differs_from_its_manifest_is_named(listed, damage):
    damage(listed / "config.json")
    with pytest.raises(Damaged, match="config.json.*(Copy it again.*remove SHA256SUMS|must be a file)"):
        check_manifest(listed)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_named_or_says_nothing(listed, damage):
    DAMAGES[damage](listed / MANIFEST)
    if damage in ("emptied", "deleted", "a loop"):
        assert check_manifest(listed) == []
    else:
        with pytest.raises(Damaged, match="SHA256SUMS"):
            check_manifest(listed)


def test_json_carries_its_digest(tmp_path):
    value = {"a": [1.5, float("inf")], "b": {10: "x", 2: None}}
    write_json(tmp_path / "v.json", value)
    assert read_json(tmp_path / "v.json") == json.loads(json.dumps(value))
    text = (tmp_path / "v.json").read_text()
    for damaged in (text.replace("1.5", "1.6"), text[:-9], "", "[1]", "[" * 100_000):
        (tmp_path / "v.json").write_text(damaged)
        with pytest.raises(Damaged, match="v.json must be the JSON object that was saved.*Copy it again"):
            read_json(tmp_path / "v.json")
    (tmp_path / "v.json").write_text('{"of": "others"}')
    assert read_json(tmp_path / "v.json") == {"of": "others"}


def test_the_identity_of_a_file_is_all_of_it_and_read_once(tmp_path):
    file = tmp_path / "big.csv"
    file.write_bytes(b"x" * 2**18)
    before = identity(file)
    assert before[:2] == ["big.csv", 2**18] and before[3] == digest(file) == digest(b"x" * 2**18)
    with open(file, "r+b") as opened:  # one byte in the middle, the size as it was
        opened.seek(2**17)
        opened.write(b"y")
    os.utime(file, ns=(0, before[2] + 1))
    assert identity(file, [before])[3] != before[3]
    kept = [*identity(file)[:3], "kept"]
    assert identity(file, [before, kept])[3] == "kept"
