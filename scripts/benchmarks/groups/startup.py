"""Start-up: seconds in new processes until the package is there, the command answers, a first explanation stands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from groups import Row, summarize

# Each says how long its own lines took; the time before the first is that of Python itself.
IMPORT = """
began = time.time()
import ehd_hf
parts["import ehd_hf"] = time.time() - began
"""
EXPLAIN = """
last = time.time()
def done(name):
    global last
    parts[name], last = time.time() - last, time.time()
import torch
done("import torch")
import transformers
done("import transformers")
import ehd_hf
from ehd_hf import EHDDistiller, load_example
done("import the rest")
explainer = EHDDistiller.from_pretrained("incidents")
done("open the model")
explainer.explain(load_example("incidents"), future=5)
done("explain")
"""
FRAME = "import json, time; parts = {{'start of Python': time.time() - {began!r}}}\n{code}\nprint(json.dumps(parts))"


def parts_of(code: str) -> dict[str, float]:
    """Seconds of each part of a new process, from its start on."""
    command = [sys.executable, "-W", "ignore", "-c", FRAME.format(began=time.time(), code=code)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def seconds_of_help() -> float:
    began = time.perf_counter()
    command = Path(sys.executable).with_name("ehd-hf")
    subprocess.run([command, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def measure(repeats: int) -> Iterator[Row]:
    parts_of(EXPLAIN)  # what is read first comes from the disk
    imports, helps, explains = [], [], []
    for _ in range(repeats):
        imports.append(parts_of(IMPORT))
        helps.append(seconds_of_help())
        explains.append(parts_of(EXPLAIN))
    yield summarize("import ehd_hf, s", [parts["import ehd_hf"] for parts in imports], "< 0.3")
    yield summarize("ehd-hf --help, the whole process, s", helps, "< 1")
    name = "first explanation from a bundled model, s"
    yield summarize(f"{name}, from the start of the process", [sum(parts.values()) for parts in explains], "< 15")
    for part in explains[0]:
        yield summarize(f"{name}: {part}", [parts[part] for parts in explains])
