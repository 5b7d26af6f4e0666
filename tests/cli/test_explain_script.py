"""The README's first command and its first Python example, run as a stranger would."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ehd_hf

ROOT = Path(__file__).resolve().parents[2]


def explain(*arguments):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "scripts" / "explain.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@pytest.fixture(scope="module")
def main():
    """The script's `main`, without starting Python anew."""
    spec = importlib.util.spec_from_file_location("explain_script", ROOT / "scripts" / "explain.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def assert_shown(printed, shown):
    """The same words, and the same numbers but for the last digit."""
    numbers = re.compile(r"-?\d+\.\d+")
    assert numbers.sub("#", printed.strip()) == numbers.sub("#", shown)
    ours, theirs = ([float(x) for x in numbers.findall(text)] for text in (printed, shown))
    assert ours == pytest.approx(theirs, abs=0.0101)


def test_without_arguments_it_explains_the_bundled_example_as_the_readme_shows():
    done = explain()
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ of 25 past events explain the 5 that followed: ", done.stdout)
    shown = (ROOT / "README.md").read_text().split("The first prints\n\n```\n")[1].split("\n```")[0]
    assert_shown(done.stdout, shown)


def test_it_writes_json_lines_for_programs(tmp_path):
    ehd_hf.load_example("incidents").assign(seq_id=7).to_csv(tmp_path / "log.csv", index=False)
    figure = tmp_path / "why.png"
    done = explain("--events", tmp_path / "log.csv", "--future", 3, "--history", 10, "--json", "--figure", figure)
    assert done.returncode == 0, done.stderr
    assert figure.read_bytes().startswith(b"\x89PNG")
    answer = json.loads(done.stdout)
    assert answer["seq_id"] == 7 and len(answer["future"]) == 3
    assert len(answer["distilled"]) + len(answer["left"]) == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nowhere-to-be-found"], "No distiller called 'nowhere-to-be-found'"),
        (["--events", "missing.csv"], "missing.csv"),
        (["--future", "99"], "the history is empty"),
        (["--curve", "--model", "incidents-paper"], 'no order of events. Ask for one with refine="prefix" or "prune"'),
        (["--share", "70"], "in (0, 1]"),
        (["--size", "0"], "size must be a number of events of at least 1; got 0"),
        (["--delta", "-1"], "delta must be at least 0; got -1.0"),
        (["--refine", "none", "--size", "3"], 'refine="none" takes the answer the distiller was trained for'),
    ],
)
def test_bad_input_ends_with_one_message_and_code_2(main, capsys, arguments, said):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert said in printed.err and not printed.out


# --- targets


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--epsilon", "0.6"], {"epsilon": 0.6}),
        (["--share", "0.5"], {"share": 0.5}),
        (["--size", "3"], {"size": 3}),
        (["--delta", "0.2"], {"delta": 0.2}),
        (
            ["--epsilon", "0.6", "--delta", "0.2", "--refine", "prefix"],
            {"epsilon": 0.6, "delta": 0.2, "refine": "prefix"},
        ),
        (["--refine", "prune"], {"refine": "prune"}),
        (["--refine", "none"], {"refine": "none"}),
        (["--future", "4", "--history", "9", "--share", "0.4"], {"future": 4, "history": 9, "share": 0.4}),
    ],
)
def test_its_flags_are_the_options_of_explain(main, capsys, words, asked):
    assert main([*words, "--json"]) == 0
    expected = ehd_hf.EHDDistiller.from_pretrained("incidents").explain(ehd_hf.load_example("incidents"), **asked)
    assert json.loads(capsys.readouterr().out) == json.loads(expected.to_json())


def test_it_prints_what_was_certified_and_the_trade_off(main, capsys):
    assert main(["--share", "0.5", "--curve", "--table"]) == 0
    printed = capsys.readouterr().out
    assert "50% of what the whole history explains, met" in printed
    assert "Certified: the future was scored again without these events" in printed
    heads = [
        number for number, line in enumerate(printed.splitlines()) if line.split()[:1] in (["position"], ["size"])
    ]
    assert printed.splitlines()[heads[0]].split() == ["position", "time", "mark", "role", "score"]
    curve = [line.split() for line in printed.splitlines()[heads[1] :]]
    assert curve[0] == ["size", "dppl_left", "explained_share"] and len(curve) == 1 + 26  # sizes 0 to 25
    assert curve[1] == ["0", "0.000", "0.000"] and curve[-1][0] == "25" and curve[-1][2] == "1.000"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epsilon", "0.5", "--share", "0.7"], "not allowed with argument --epsilon"),
        (["--size", "3", "--share", "0.7"], "not allowed with argument --size"),
        (["--refine", "swap"], "invalid choice: 'swap'"),
        (["--size", "many"], "invalid int value: 'many'"),
    ],
)
def test_what_cannot_be_parsed_is_refused_before_anything_is_loaded(main, capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_the_first_python_example_of_the_readme_prints_what_it_shows(capsys):
    block = r"## In Python\n\n(?:<!--[^\n]*-->\n)?```python\n(.*?)```\n\nprints\n\n```\n(.*?)\n```"
    code, shown = re.search(block, (ROOT / "README.md").read_text(), re.DOTALL).groups()
    exec(compile(code, "README.md", "exec"), {})
    assert_shown(capsys.readouterr().out, shown)
