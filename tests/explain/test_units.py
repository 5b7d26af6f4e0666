"""Units of work by every engine: the folder of one process, whatever is killed, lost, damaged or in the way."""

import builtins
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_pipeline import small_distiller

from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.many import Work, explain_many, trace_many
from ehd_hf.explain.units import Failed, run_units
from ehd_hf.files import CannotWrite, locked

ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
OPTIONS = {"windows": True, "share": 0.5, "refine": "prefix"}


@pytest.fixture(scope="module")
def explainer():
    return EHDDistiller(small_distiller(), share=0.7)


def write_source(path, sequences, length=25):
    generator = np.random.default_rng(6)
    times = np.sort(generator.uniform(0, 100, (sequences, length)), axis=1)
    columns = {"times": list(times), "marks": list(generator.integers(0, 6, times.shape))}
    pq.write_table(
        pa.table({"seq_id": [f"user {n:03d}" for n in range(sequences)], **columns}), path, row_group_size=1
    )
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("source") / "events.parquet", 6)


@pytest.fixture(scope="module")
def one(explainer, source, tmp_path_factory):
    out = tmp_path_factory.mktemp("one") / "out"
    assert explain_many(explainer, source, out, **OPTIONS, work=Work(14)).files == 6
    return contents(out)


def contents(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


# --- engines


class Task:
    """Notes each call in a file; what a unit does is its first word."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, unit):
        word, name = unit
        with open(self.folder / name, "ab") as file:
            file.write(b".")
        if word == "kill" or (word == "kill once" and (self.folder / name).stat().st_size == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "fail":
            raise RuntimeError(f"{name} was not to be")
        if word == "refuse":
            raise ValueError(f"{name} holds nonsense")
        if word == "full":
            raise CannotWrite(self.folder, 28, "No space left on device")
        return name.upper()

    def calls(self, name):
        return (self.folder / name).stat().st_size


PROCESSES = pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.slow)])


@PROCESSES
def test_a_unit_is_tried_three_times_and_the_others_are_done(tmp_path, workers):
    task, given = Task(tmp_path), [("do", "a"), ("fail", "b"), ("refuse", "c"), ("do", "d")]
    results = dict(run_units(task, given, Work(workers=workers)))
    assert [results[unit] for unit in given] == ["A", Failed("b was not to be"), Failed("c holds nonsense"), "D"]
    assert [task.calls(name) for name in "abcd"] == [1, 3, 1, 1]


@PROCESSES
def test_a_full_disk_ends_the_whole(tmp_path, workers):
    with pytest.raises(CannotWrite, match="no space left to write .*No space left"):
        list(run_units(Task(tmp_path), [("full", "a")], Work(workers=workers)))


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_a_deadly_unit_is_given_up(tmp_path):
    given = [("do", "a"), ("kill once", "b"), ("do", "c"), ("kill", "d")]
    results = dict(run_units(Task(tmp_path), given, Work(workers=2)))
    assert [results[unit] for unit in given] == ["A", "B", "C", Failed("the worker process died each time")]


def test_two_local_processes_write_the_folder_of_one(explainer, source, one, tmp_path):
    explain_many(explainer, source, tmp_path / "out", **OPTIONS, work=Work(14, workers=2))
    assert contents(tmp_path / "out") == one


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of processes that Ray leaves to end by themselves
def test_a_local_ray_writes_the_folder_of_one(explainer, source, one, tmp_path):
    ray = pytest.importorskip("ray")
    explain_many(explainer, source, tmp_path / "out", **OPTIONS, work=Work(14, engine="ray", workers=2))
    assert contents(tmp_path / "out") == one and not ray.is_initialized()


def test_a_process_reads_little_more_than_its_part(explainer, source, tmp_path, monkeypatch):
    read, original = [], pq.ParquetFile.read_row_groups

    def counted(self, groups, *given, **options):
        read.extend(self.metadata.row_group(group).total_byte_size for group in groups)
        return original(self, groups, *given, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    explain_many(explainer, source, tmp_path / "out", **OPTIONS, work=Work(14, rank=1, world_size=3))
    metadata = pq.read_metadata(source)
    whole = sum(metadata.row_group(group).total_byte_size for group in range(6))
    assert 0 < sum(read) <= 1.1 * whole / 3


# --- in the way


def test_without_ray_its_engine_says_what_to_install(explainer, source, tmp_path, monkeypatch):
    original = builtins.__import__

    def blocked(name, *given):
        if name == "ray":
            raise ImportError(name)
        return original(name, *given)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(ValueError, match=r"needs Ray. Install it with pip install 'ehd-hf\[ray\]'"):
        explain_many(explainer, source, tmp_path / "out", work=Work(engine="ray"))


def test_an_address_where_nothing_listens_is_refused_in_seconds(tmp_path):
    pytest.importorskip("ray")
    began = time.monotonic()
    with pytest.raises(ValueError, match="no Ray cluster answers at 127.0.0.1:9: .*Start it, or name another"):
        list(run_units(Task(tmp_path), [("do", "a")], Work(engine="ray", address="127.0.0.1:9")))
    assert time.monotonic() - began < 10


def test_a_second_driver_of_a_folder_is_refused(explainer, source, tmp_path):
    out = tmp_path / "out"
    explain_many(explainer, source, out, work=Work(14))
    with locked(out / ".rank-0"), pytest.raises(ValueError, match="must have one writer at a time"):
        explain_many(explainer, source, out, work=Work(14))


def test_work_that_cannot_be_shared_is_refused(explainer, source, tmp_path):
    for options, message in (
        ({"workers": 0}, "workers must be at least 1; got 0"),
        ({"engine": "spark"}, "the engine must be local or ray; got 'spark'"),
        ({"address": "here:1"}, "an address is that of a Ray cluster; got 'here:1'"),
        ({"memory": "much"}, "memory is written like 500MB or 1.5GB; got 'much'"),
    ):
        with pytest.raises(ValueError, match=message):
            Work(**options)
    with pytest.raises(ValueError, match="several processes write to a folder; got .*answers.csv"):
        explain_many(explainer, source, tmp_path / "answers.csv", work=Work(workers=2))


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def test_a_damaged_row_group_costs_its_unit_only(explainer, tmp_path, one):
    """Damaged after the plan was made, by a disk that keeps size and time; then mended."""
    source, out = write_source(tmp_path / "events.parquet", 6), tmp_path / "out"
    work = Work(14, rank=0, world_size=6)  # the plan, and the first part
    assert not explain_many(explainer, source, out, **OPTIONS, work=work).finished
    whole, state = source.read_bytes(), source.stat()
    column = pq.read_metadata(source).row_group(3).column(1)
    flip(source, column.data_page_offset + 5)
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    done = explain_many(explainer, source, out, **OPTIONS, work=Work(14))
    (reason,) = done.failed
    assert "part 3: " in reason and "events.parquet, row groups 3 to 3" in reason and not done.finished
    assert done.files == 5 and json.loads((out / "_failed.json").read_text())["failed"] == [reason]
    source.write_bytes(whole)
    assert explain_many(explainer, source, out, **OPTIONS, work=Work(14)).finished
    assert {name: content for name, content in contents(out).items() if name[0] == "p"} == {
        name: content for name, content in one.items() if name[0] == "p"
    }


def test_a_damaged_source_is_refused_before_anything_is_done(explainer, tmp_path):
    source = write_source(tmp_path / "events.parquet", 6)
    flip(source, pq.read_metadata(source).row_group(3).column(1).data_page_offset + 5)
    with pytest.raises(ValueError, match="events.parquet, row groups 3 to 3, cannot be read"):
        explain_many(explainer, source, tmp_path / "out", **OPTIONS, work=Work(14))
    assert not (tmp_path / "out").exists()


def test_what_a_unit_cannot_answer_is_reported_with_its_sequences(explainer, tmp_path):
    source, out = write_source(tmp_path / "events.parquet", 6), tmp_path / "out"
    marks = np.zeros((6, 25), dtype=np.int64)
    marks[[0, 1, 3, 4, 5], -1] = 2
    table = pq.read_table(source)
    pq.write_table(table.set_column(2, "marks", pa.array(list(marks))), source, row_group_size=1)
    kind = explainer.mtpp.config.id2label[2]
    done = explain_many(explainer, source, out, kind=kind, share=0.5, work=Work(1))
    (reason,) = done.failed
    assert "part 2: sequences 'user 002' to 'user 002': " in reason and f"no '{kind}' in its future" in reason
    assert done.files == 5 and not done.finished


def test_any_flipped_byte_and_a_foreign_part_are_noticed(explainer, source, one, tmp_path):
    out, generator = tmp_path / "out", np.random.default_rng(0)
    explain_many(explainer, source, out, **OPTIONS, work=Work(14))
    part = out / "part-000002.parquet"
    for place in generator.integers(0, part.stat().st_size, 25):
        flip(part, int(place))
        explain_many(explainer, source, out, **OPTIONS, work=Work(14))
        assert contents(out) == one
    part.write_bytes(one["part-000003.parquet"])
    explain_many(explainer, source, out, **OPTIONS, work=Work(14))
    assert contents(out) == one


def test_a_source_edited_in_its_middle_is_another_one(explainer, tmp_path):
    source, out = write_source(tmp_path / "events.parquet", 6), tmp_path / "out"
    explain_many(explainer, source, out, **OPTIONS, work=Work(14))
    table = pq.read_table(source).to_pandas()
    table.at[3, "times"] = table.at[3, "times"] + 1e-9
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), source, row_group_size=1)
    with pytest.raises(ValueError, match="another request: expected source"):
        explain_many(explainer, source, out, **OPTIONS, work=Work(14))


@pytest.mark.slow
def test_causes_are_found_by_several_processes(explainer, source, tmp_path):
    for workers in (None, 2):
        trace_many(explainer, source, tmp_path / str(workers), work=Work(60, workers=workers))
    assert contents(tmp_path / "None") == contents(tmp_path / "2")


# --- a cluster

NODES = """import sys, time
from ray.cluster_utils import Cluster
options = {"object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args=options | {"num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1, **options) for _ in range(int(sys.argv[1]))]
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    print("removed", flush=True)
cluster.shutdown()
"""
DRIVER = """import sys
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.many import Work, explain_many
if __name__ == "__main__":
    model, source, out, address = sys.argv[1:]
    work = Work(14, engine="ray", address=address)
    explain_many(EHDDistiller.from_pretrained(model), source, out, windows=True, share=0.5, work=work)
"""


@contextlib.contextmanager
def cluster_of(nodes):
    """Its address, and a function that ends one of its nodes without warning."""
    command = [sys.executable, "-c", NODES, str(nodes)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes) as process:

        def end_a_node():
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "removed\n"

        try:
            yield process.stdout.readline().strip(), end_a_node
        finally:
            process.stdin.close()
            process.wait(60)


def actors_of(cluster):
    """Processes of actors, of any cluster of this test: those that have its address in their arguments."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (place / "cmdline").read_bytes().startswith(b"ray::_Actor"):
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                if cluster.encode() in Path(f"/proc/{parent}/cmdline").read_bytes():
                    found.append(int(place.name))
    return found


@pytest.mark.slow
def test_a_cluster_that_loses_a_node_an_actor_a_process_and_its_driver_loses_nothing(tmp_path):
    pytest.importorskip("ray")
    model, source, out = tmp_path / "model", write_source(tmp_path / "events.parquet", 100), tmp_path / "out"
    small_distiller().save_pretrained(model)
    (tmp_path / "run.py").write_text(DRIVER)
    command = [sys.executable, str(tmp_path / "run.py"), str(model), str(source), str(out)]
    deadline = time.monotonic() + 900

    def wait_for(files, driver):
        while len(list(out.glob("part-*.parquet"))) < files:
            assert driver.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)

    with cluster_of(3) as (address, end_a_node):
        driver = subprocess.Popen([*command, address], env=ENVIRONMENT)
        wait_for(8, driver)
        end_a_node()
        wait_for(30, driver)
        for then in (50, 65):  # an actor's process, twice
            os.kill(actors_of(address)[0], signal.SIGKILL)
            wait_for(then, driver)
        driver.kill()
        driver.wait()
    kept = {file.name: file.stat().st_mtime_ns for file in out.glob("part-*.parquet")}
    assert 65 <= len(kept) < 100
    with cluster_of(2) as (address, _):
        subprocess.run([*command, address], env=ENVIRONMENT, check=True, timeout=deadline - time.monotonic())
    explainer = EHDDistiller.from_pretrained(model)
    done = explain_many(explainer, source, tmp_path / "one", windows=True, share=0.5, work=Work(14))
    assert done.files == 100 and contents(out) == contents(tmp_path / "one")
    assert all((out / name).stat().st_mtime_ns == then for name, then in kept.items())
    rows = pq.read_table(out).to_pandas()
    assert not rows.duplicated(["seq_id", "window"]).any() and len(rows) == done.windows == 100 * 14
