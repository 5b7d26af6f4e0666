"""Feed every reader of files with damaged ones: only sound events, or an error of our own, may come out.

Valid files of every layout, and what lies beside a model's weights (config, reading, plan), are mutated at random
(bytes flipped, spans cut, copied and spliced, values and types swapped, nested and made huge, encodings changed) and
read. None may take more than a few seconds, nor all of them together more than 1.5 GB. Each round has its own seed,
printed with what went wrong; --seed and --rounds 1 repeat it. The file that is being read lies in --out, so that even
a crash leaves it behind.

  python scripts/tools/fuzz_readers.py --minutes 3
  python scripts/tools/fuzz_readers.py --minutes 10 --only config.json
"""

import faulthandler
import json
import pickle
import random
import resource
import shutil
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from transformers.utils import logging

import ehd_hf
from ehd_hf import EHDDistiller
from ehd_hf.data.export import export_windows
from ehd_hf.data.reading import Reading, read_events
from ehd_hf.data.sequences import EventSequences, load_events
from ehd_hf.data.sources import load_source
from ehd_hf.data.tables import column_names
from ehd_hf.data.windows import load_windows
from ehd_hf.files import Damaged, read_json
from ehd_hf.hub.fetch import CHECKPOINTS
from ehd_hf.training.recipe import Run, make_plan
from neural_hawkes import read_pickles

OURS = {Path(ehd_hf.__file__).parent, Path(__file__).parent}
TIMES, MARKS = [[0.5, 1.5, 1.5, 4.0], [2.0, 3.25, 9.0]], [["login", "error", "login", "ok"], ["ok", "ok", "error"]]
ROWS = [{"seq_id": i, "time": t, "mark": m} for i in (0, 1) for t, m in zip(TIMES[i], MARKS[i], strict=True)]
EASYTPP = [
    {"seq_idx": i, "dim_process": 3, "time_since_start": times, "type_event": [len(mark) % 3 for mark in marks]}
    | {"time_since_last_event": [0.0, *np.diff(times).tolist()]}
    for i, (times, marks) in enumerate(zip(TIMES, MARKS, strict=True))
]
EVENT = ("time_since_start", "time_since_last_event", "type_event")
HAWKES = {
    "dim_process": 3,
    "train": [
        [dict(zip(EVENT, values, strict=True)) for values in zip(*map(row.get, EVENT), strict=True)] for row in EASYTPP
    ],
}
TOO_LONG, MOST_SECONDS, MOST_BYTES = 60, 5, 1.5e9  # seconds until it hangs, of its own work, and memory of all
MODEL = CHECKPOINTS / "incidents"
# Values and texts that readers stumble over.
TOKENS: list[Any] = [None, True, "", " ", "nan", -1, 0, 2**31, 2**63, -(2**63), 1e308, -1e-320, 1.5, "1e999", [], {}]
TOKENS += [[None], [[]], {"a": 1}, "\ud83d\ude80", "2026-01-01T00:00:00Z", "0000-00-00", "<script>", "é", float("nan")]
TOKENS += [float("inf"), "times", "marks", "seq_id", [1, "a"], 1_700_000_000_000_000_000, "x" * 300]
BYTES = [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b",", b"\n", b"\r\n", b"\t", b"[", b"}"]
BYTES += [b"1e999", b"NaN", b"\x80"]
TYPES = [pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary()]
TYPES += [pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.date32(), pa.time64("us"), pa.duration("s"), pa.null()]
TYPES += [pa.decimal128(8, 2), pa.dictionary(pa.int8(), pa.string()), pa.struct([("a", pa.int8())])]
NAMES = ["times", "time", "marks", "mark", "seq_id", "start", "epoch", "time_since_start", "type_event", "seq_idx"]


def valid_files() -> dict[str, bytes]:
    """Contents of a sound file of every layout, by name."""
    files = {
        "long.csv": "seq_id,time,mark\n" + "".join(f"{r['seq_id']},{r['time']},{r['mark']}\n" for r in ROWS),
        "dates.csv": "user;when;event\n" + "".join(f"u{i};2026-03-0{i + 1} 10:0{i};k{i % 3}\n" for i in range(9)),
        "long.tsv": "time\tmark\n" + "".join(f"{i}\t{i % 3}\n" for i in range(9)),
        "long.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "lists.jsonl": "".join(json.dumps({"times": TIMES[i], "marks": MARKS[i]}) + "\n" for i in (0, 1)),
        "lists.json": json.dumps([{"times": TIMES[i], "marks": MARKS[i]} for i in (0, 1)]),
        "columns.json": json.dumps({"times": TIMES, "marks": MARKS}),
        "easytpp.json": json.dumps(EASYTPP),
        "easytpp.jsonl": "".join(json.dumps(row) + "\n" for row in EASYTPP),
    }
    tables = {"long.parquet": pa.Table.from_pylist(ROWS), "easytpp.parquet": pa.Table.from_pylist(EASYTPP)}
    binary = {f"hawkes{protocol}.pkl": pickle.dumps(HAWKES, protocol) for protocol in (0, 2, 4)}
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        binary[name] = sink.getvalue().to_pybytes()
    with TemporaryDirectory() as folder:
        events = load_events({"times": TIMES, "marks": MARKS})
        export_windows({"train": events}, Path(folder) / "out", [(1, 2)], name="fuzz")
        binary["export.parquet"] = (Path(folder) / "out" / "sequences" / "train.parquet").read_bytes()
    reading = Reading("time", "mark", "seq_id", "iso", "h", ("a", "b"), False, 1.0)
    plan, _ = make_plan(load_events({"times": [list(range(60))] * 30, "marks": [[0, 1] * 30] * 30}))
    files["reading.json"] = json.dumps(reading.to_dict())
    files["plan.json"] = json.dumps(asdict(Run(plan, reading.to_dict())))
    files["config.json"] = (MODEL / "config.json").read_text()
    return {name: text.encode() for name, text in files.items()} | binary


# --- damage


def mutated(name: str, valid: dict[str, bytes], draw: random.Random) -> bytes:
    """A damaged copy of a valid file: its values, or its bytes."""
    content = valid[name]
    if name.endswith(".parquet") and draw.random() < 0.7:
        return _strange_table(content, draw)
    if name in BESIDE_A_MODEL and draw.random() < 0.9:
        value = json.loads(content)
        for _ in range(draw.choice([1, 1, 2, 3])):
            value = _strange_value(value, draw)
        text, depth = json.dumps(value), draw.choice([1, 100, 900, 100_000])
        return text.replace("null", "[" * depth + "]" * depth, draw.choice([0, 0, 0, 1])).encode()
    if name.endswith((".json", ".jsonl")) and draw.random() < 0.6:
        lines = content.splitlines() if name.endswith(".jsonl") else [content]
        return b"\n".join(json.dumps(_strange_value(json.loads(line), draw)).encode() for line in lines)
    if name.endswith(".pkl") and draw.random() < 0.4:
        return pickle.dumps(_strange_value(pickle.loads(content), draw), protocol=draw.choice([0, 2, 4]))
    if draw.random() < 0.1 and not name.endswith((".parquet", ".pkl")):
        return content.decode().replace("o", "ö").encode(draw.choice(["latin-1", "utf-16", "utf-8-sig", "cp1252"]))
    for _ in range(draw.choice([1, 1, 2, 5])):
        content = _damaged(content, valid, draw)
    return content


def _damaged(content: bytes, valid: dict[str, bytes], draw: random.Random) -> bytes:
    first = draw.randrange(len(content) + 1)
    last = min(len(content), first + draw.choice([0, 1, 1, 2, 8, 40]))
    other = valid[draw.choice(sorted(valid))]
    start = draw.randrange(len(other))
    pieces = {
        "flip": bytes(byte ^ (1 << draw.randrange(8)) for byte in content[first:last]),
        "cut": b"",
        "repeat": content[first:last] * draw.choice([2, 3, 50]),
        "insert": draw.choice(BYTES) + content[first:last],
        "token": str(draw.choice(TOKENS)).encode("utf-8", "surrogatepass"),
        "splice": other[start : start + 40],
    }
    if draw.random() < 0.1:
        return content[:first]  # a download that broke off
    return content[:first] + pieces[draw.choice(sorted(pieces))] + content[last:]


def _strange_value(value: Any, draw: random.Random) -> Any:
    """The same structure with a value, a key or a length changed somewhere."""
    if draw.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return draw.choice(TOKENS)
    if isinstance(value, list):
        place = draw.randrange(len(value))
        if draw.random() < 0.2:
            return value[:place] + value[place + 1 :]
        return [_strange_value(v, draw) if i == place else v for i, v in enumerate(value)]
    chosen = draw.choice(sorted(value, key=str))
    if draw.random() < 0.2:
        return {key if key != chosen else draw.choice(NAMES): inner for key, inner in value.items()}
    return {key: _strange_value(inner, draw) if key == chosen else inner for key, inner in value.items()}


def _strange_table(content: bytes, draw: random.Random) -> bytes:
    """The same table with columns of other types and names, missing values, and other words beside the schema."""
    table = pq.read_table(pa.BufferReader(content))
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    for _ in range(draw.choice([1, 1, 2])):
        name, kind = draw.choice(sorted(columns)), draw.choice(TYPES)
        values = [draw.choice([None, *TOKENS]) if draw.random() < 0.5 else None for _ in range(table.num_rows)]
        try:
            columns[name] = pa.array(values, draw.choice([kind, pa.list_(kind), pa.list_(kind, 2), None]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            columns[name] = pa.array([None] * table.num_rows, kind)  # no such value of this type
        if draw.random() < 0.3:
            columns = {draw.choice(NAMES) if key == name else key: values for key, values in columns.items()}
    metadata = {
        key: draw.choice([value, b"", b"[]", b"{", b'{"info": 3}', b"\xff"])
        for key, value in (table.schema.metadata or {}).items()
    }
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), sink)
    except pa.ArrowException:
        return content  # Parquet has no room for such a value
    return sink.getvalue().to_pybytes()


# --- reading


def _explain(file: Path) -> Any:
    """Open the bundled weights with this config, and ask."""
    shutil.copyfile(MODEL / "model.safetensors", file.parent / "model.safetensors")
    explainer = EHDDistiller.from_pretrained(file.parent)
    name = next(iter(explainer.mtpp.config.id2label.values()))
    return explainer.explain([(float(i), name) for i in range(6)], future=1, history=5)


BESIDE_A_MODEL: dict[str, Callable[[Path], Any]] = {
    "config.json": _explain,
    "reading.json": lambda file: Reading.from_dict(read_json(file)),
    "plan.json": Run.load,
}


def readers(file: Path) -> dict[str, Callable[[], Any]]:
    """Everything that may be asked to read this file, also as the only split in a folder."""
    if file.name in BESIDE_A_MODEL:
        return {file.name: lambda: BESIDE_A_MODEL[file.name](file)}
    folder = file.parent / "folder"
    split = (folder / "sequences" if file.name == "export.parquet" else folder) / f"train{file.suffix}"
    split.parent.mkdir(parents=True, exist_ok=True)
    split.write_bytes(file.read_bytes())
    if file.suffix == ".pkl":
        return {"read_pickles": lambda: read_pickles(file)}
    calls: dict[str, Callable[[], Any]] = {
        "load_events": lambda: load_events(file),
        "load_events sorted": lambda: load_events(file, sort=True, time_unit="h"),
        "column_names": lambda: column_names(file),
        "read_events": lambda: read_events(file).events,
        "load_source": lambda: load_source(file),
        "load_source of a folder": lambda: load_source(folder),
        "load_windows": lambda: load_windows(file, "1-2").sequences,
        "load_windows of a folder": lambda: load_windows(folder, "1-2").sequences,
    }
    return calls


def outcome(read: Callable[[], Any]) -> str:
    """ "events", "refused", or what is wrong with the answer."""
    try:
        result = read()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = type(error) in (ValueError, OSError, FileNotFoundError, Damaged) and OURS & {
            *Path(frames[-1].filename).parents
        }
        return "refused" if ours else "".join(traceback.format_exception(error))
    for sequences in result.values() if isinstance(result, dict) else [result]:
        if isinstance(sequences, EventSequences) and (wrong := unsound(sequences)):
            return f"unsound events: {wrong}"
    return "events"


def unsound(sequences: EventSequences) -> str | None:
    """What the door should have stopped."""
    times, marks, lengths = sequences.times, sequences.marks, sequences.lengths
    steps = np.diff(times)[np.setdiff1d(np.arange(1, len(times)), sequences.offsets[1:-1]) - 1]
    checks = {
        "times that are not finite": not np.isfinite(times).all(),
        "times that fall": bool((steps < 0).any()),
        "intervals that are not finite": not np.isfinite(sequences.intervals()).all(),
        "marks out of range": bool(((marks < 0) | (marks >= sequences.num_marks)).any()),
        "a sequence without events": bool((lengths < 1).any()),
        "ids that repeat": len(set(sequences.seq_ids)) != len(sequences),
        "names that repeat": len(set(sequences.id2label.values())) != sequences.num_marks,
    }
    return next((name for name, bad in checks.items() if bad), None)


def main(
    minutes: Annotated[float, typer.Option(help="how long to go on")] = 3.0,
    rounds: Annotated[int | None, typer.Option(help="how many files to damage, instead of --minutes")] = None,
    seed: Annotated[int, typer.Option(help="seed of the first round; each has the next")] = 0,
    only: Annotated[str | None, typer.Option(help="damage this file only, such as config.json")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the file at hand; a temporary one if not given")] = None,
) -> None:
    """Damage files and read them; ends with 1 if something is wrong."""
    faulthandler.enable()
    warnings.simplefilter("error")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    valid, counts, wrong = valid_files(), Counter[str](), Counter[str]()
    until, first = time.monotonic() + 60 * minutes, seed
    with TemporaryDirectory() as temporary:
        out = out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        while time.monotonic() < until if rounds is None else seed < first + rounds:
            draw = random.Random(seed)
            (out / "seed").write_text(str(seed))
            name = only or draw.choice(sorted(valid))
            folder = out / name.replace(".", "_")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(mutated(name, valid, draw))
            for reader, read in readers(folder / name).items():
                faulthandler.dump_traceback_later(TOO_LONG, exit=True)
                began = time.process_time()
                result = outcome(read)
                if (spent := time.process_time() - began) > MOST_SECONDS:
                    result = f"took {spent:.0f} s"
                faulthandler.cancel_dump_traceback_later()
                counts[result if result in ("events", "refused") else "wrong"] += 1
                if result not in ("events", "refused"):
                    kind = f"{reader}: {result.strip().splitlines()[-1][:150]}"
                    wrong[kind] += 1
                    if wrong[kind] == 1:
                        print(f"seed {seed}, {name}, {reader}:\n{result}", flush=True)
            seed += 1
    if (memory := 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) > MOST_BYTES:
        wrong[f"took {memory / 1e9:.1f} GB"] += 1
    for what, count in wrong.most_common():
        print(f"{count:6} x {what}")
    print(f"seeds {first}..{seed - 1}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
