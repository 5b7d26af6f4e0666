"""The README's first command and its first Python example, run as a stranger would."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ehd_hf

ROOT = Path(__file__).resolve().parent.parent


def explain(*arguments):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "scripts" / "explain.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_without_arguments_it_explains_the_bundled_example_as_the_readme_shows():
    done = explain()
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ of 25 past events explain the 5 that followed: ", done.stdout)
    shown = (ROOT / "README.md").read_text().split("The first prints\n\n```\n")[1].split("\n```")[0]
    numbers = re.compile(r"-?\d+\.\d+")
    # The same words, and the same numbers but for the last digit.
    assert numbers.sub("#", done.stdout.strip()) == numbers.sub("#", shown)
    ours, theirs = ([float(x) for x in numbers.findall(text)] for text in (done.stdout, shown))
    assert ours == pytest.approx(theirs, abs=0.0101)


def test_it_writes_json_lines_for_programs(tmp_path):
    ehd_hf.load_example("incidents").assign(seq_id=7).to_csv(tmp_path / "log.csv", index=False)
    done = explain("--events", tmp_path / "log.csv", "--future", 3, "--history", 10, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["seq_id"] == 7 and len(answer["future"]) == 3
    assert len(answer["distilled"]) + len(answer["left"]) == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nowhere-to-be-found"], "No distiller called 'nowhere-to-be-found'"),
        (["--events", "missing.csv"], "missing.csv"),
        (["--future", "99"], "the history is empty"),
    ],
)
def test_bad_input_ends_with_one_message_and_code_2(arguments, said):
    done = explain(*arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr and not done.stdout


def test_the_first_python_example_of_the_readme_runs(capsys):
    code = re.search(r"## In Python\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})
    assert "past events explain" in capsys.readouterr().out
