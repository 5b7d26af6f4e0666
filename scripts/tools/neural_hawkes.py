"""Turn the Neural Hawkes and Transformer Hawkes pickles into EasyTPP rows, without running anything inside them.

    python scripts/tools/neural_hawkes.py data/mimic --out data/mimic_rows

then, in Python: ehd_hf.load_windows("data/mimic_rows", "15-40").
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import pickletools
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ehd_hf.data.sequences import SPLIT_NAMES, split_files
from ehd_hf.data.tables import reason_of
from ehd_hf.files import write_text

PICKLES = (".pkl", ".pickle")


def read_pickles(path: Path) -> dict[str, list[dict[str, Any]]]:
    """EasyTPP rows of each split.

    Args:
        path: a pickle of {"dim_process": C, "train": sequences, "dev": ..., "test": ...}, a sequence being a list of
            {"time_since_start": ..., "time_since_last_event": ..., "type_event": ...}; or a folder with train.pkl,
            dev.pkl and test.pkl, each giving its own split (some releases repeat the others in every file).
    """
    if path.is_dir():
        files = split_files(path, PICKLES)
        rows = {split: _pickled_rows(file).get(split, []) for split, file in files.items()}
    else:
        rows = _pickled_rows(path)
    for split in (split for split, sequences in rows.items() if not sequences):
        raise ValueError(f"split {split} must have a sequence; got none. Check its file, or leave it out.")
    return rows


def _pickled_rows(file: Path) -> dict[str, list[dict[str, Any]]]:
    """EasyTPP rows of every split that has sequences; other keys of the pickle (args, devtest) are ignored."""
    fields = ("time_since_start", "time_since_last_event", "type_event")
    raw = file.read_bytes()
    try:
        _check_memo(raw)
        content = _PlainUnpickler(io.BytesIO(raw), encoding="latin1").load()  # latin1: many were written by Python 2
    except Exception as error:  # a damaged or hostile pickle may fail in any way
        raise ValueError(
            f"{file} must be a pickle of plain lists, dicts, numbers and strings; got {reason_of(error)}. Nothing in "
            "it was run. If you trust the file, convert it to JSON or Parquet yourself."
        ) from error
    try:
        splits = {SPLIT_NAMES[key]: value for key, value in content.items() if key in SPLIT_NAMES and value}
        # References make a pickle unfold: no event takes less than a byte, so more of them than bytes are a trap.
        too_many = sum(len(events) for sequences in splits.values() for events in sequences) > len(raw)
        rows = {
            split: [
                {field: [event[field] for event in events] for field in fields}
                | {"dim_process": content.get("dim_process")}
                for events in sequences
            ]
            for split, sequences in splits.items()
            if not too_many
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} must be a dict of splits, each a list of sequences of events with {', '.join(fields)}; got "
            f"{error!r}. Convert it to JSON or Parquet."
        ) from error
    if too_many or not rows:
        got = f"more events than its {len(raw):,} bytes" if too_many else ", ".join(map(str, content))
        raise ValueError(f"{file} must hold sequences under train, dev or test; got {got}. Check where it is from.")
    return rows


def _check_memo(raw: bytes) -> None:
    """Refuse a pickle that numbers its memo beyond its own length: the reader would make room for all up to there."""
    for code, argument, _ in pickletools.genops(raw):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(raw):
            raise pickle.UnpicklingError(f"a memo of {argument:,} entries in {len(raw):,} bytes")


class _NumberType:
    """Stands for a numpy dtype inside a pickle: numbers only, so that no bytes are ever taken for objects."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, *_: Any) -> None:
        if not (isinstance(code, str) and re.fullmatch(r"[<>=|]?(b1|[iu][1248]|f[248])", code)):
            raise pickle.UnpicklingError(f"the numpy type {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


def _number(kind: Any, raw: Any) -> int | float | bool:
    if type(kind) is not _NumberType or type(raw) not in (str, bytes):
        raise pickle.UnpicklingError(f"a numpy scalar of {type(kind).__name__} and {type(raw).__name__}")
    return np.frombuffer(raw.encode("latin1") if isinstance(raw, str) else raw, dtype=kind.dtype, count=1)[0].item()


def _latin1(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
    return text.encode("latin1")


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and strings. Imports nothing: numpy's scalars, where named, are built by the code above."""

    stand_ins: Mapping[tuple[str, str], Callable[..., Any]] = {
        ("numpy.core.multiarray", "scalar"): _number,
        ("numpy._core.multiarray", "scalar"): _number,
        ("numpy", "dtype"): _NumberType,
        ("_codecs", "encode"): _latin1,  # how protocol 2 writes the bytes of a scalar
    }

    def find_class(self, module: str, name: str) -> Any:
        build = self.stand_ins.get((module, name))
        if build is None:
            raise pickle.UnpicklingError(f"a request to import {module}.{name}")
        # A fresh function each time, because a pickle may set attributes on what it is handed.
        return lambda *arguments: build(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pickles", type=Path, help="a pickle, or a folder with train.pkl, dev.pkl and test.pkl")
    parser.add_argument("--out", type=Path, required=True, help="folder to write one JSON Lines file per split to")
    arguments = parser.parse_args()
    try:
        splits = read_pickles(arguments.pickles)
    except (ValueError, OSError) as error:
        sys.exit(f"neural_hawkes: {error}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        write_text(arguments.out / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    print(f"wrote {', '.join(f'{len(rows):,} sequences of {split}' for split, rows in splits.items())}")


if __name__ == "__main__":
    main()
