"""Properties that hold for all inputs, tried on examples that hypothesis draws: run with HYPOTHESIS_PROFILE=thorough
for hundreds of new ones."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from ehd_hf import dppl, load_events
from ehd_hf.cli import app
from ehd_hf.models.perplexity import log_perplexity
from ehd_hf.models.window import Window
from helpers import random_window, tiny_fullynn

FINITE = st.floats(-1e12, 1e12, allow_subnormal=False)
NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=8).filter(lambda name: name.strip())
SEEDS = st.integers(0, 2**31)


@st.composite
def sequences(draw, max_events=9):
    """Times and names of marks of one to four sequences."""
    lengths = draw(st.lists(st.integers(1, max_events), min_size=1, max_size=4))
    times = [sorted(draw(st.lists(FINITE, min_size=n, max_size=n))) for n in lengths]
    return times, [draw(st.lists(NAMES, min_size=n, max_size=n)) for n in lengths]


MODEL = tiny_fullynn(3, scale=0.5, embedding_size=2, hidden_size=3, num_components=3).requires_grad_(False)


@given(sequences())
def test_events_survive_every_format(drawn):
    times, marks = drawn
    lists = {"seq_id": [f"s{i}" for i in range(len(times))], "times": times, "marks": marks}
    rows = [{key: lists[key][i] for key in lists} for i in range(len(times))]
    long = pd.DataFrame(
        [(f"s{i}", t, m) for i in range(len(times)) for t, m in zip(times[i], marks[i], strict=True)],
        columns=["seq_id", "time", "mark"],
    )
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pd.DataFrame(lists).to_parquet(folder / "lists.parquet")
        long.to_parquet(folder / "long.parquet")
        (folder / "rows.json").write_text(json.dumps(rows))
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (folder / "columns.json").write_text(json.dumps(lists))
        for source in (lists, rows, long, *sorted(folder.iterdir())):
            events = load_events(source)
            assert [events.id2label[mark] for mark in events.marks] == sum(marks, [])
            np.testing.assert_array_equal(events.times, np.concatenate(times))
            np.testing.assert_array_equal(events.lengths, [len(piece) for piece in times])


# --- the perplexity drop


@given(SEEDS, st.integers(1, 4), st.integers(1, 6), st.integers(1, 4), st.sampled_from(["paper", "survival"]))
def test_the_drop_of_the_full_history_is_exactly_zero(seed, num_rows, num_history, num_future, conditioning):
    window = random_window(num_rows, num_history, num_future, 3, seed)
    keep = torch.ones(num_rows, num_history, dtype=window.times.dtype)
    for rebuilder in ("gate", "select", "compact"):
        assert (dppl(MODEL, window, keep, conditioning=conditioning, rebuilder=rebuilder) == 0).all()


@given(SEEDS, st.integers(2, 5), st.integers(1, 6), st.integers(1, 3), st.integers(1, 5))
def test_log_perplexity_knows_nothing_of_other_rows_or_padding(seed, num_rows, num_history, num_future, padded):
    window = random_window(num_rows, num_history, num_future, 3, seed)
    together = log_perplexity(MODEL, window)
    alone = [log_perplexity(MODEL, window.rows(torch.tensor([row]))) for row in range(num_rows)]
    front = Window(*(torch.nn.functional.pad(x, (padded, 0)) for x in window[:3]), num_future)
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_perplexity(MODEL, front), together, rtol=1e-12, atol=1e-12)


# --- the command line

WORDS = "explain train data check report --json --future --history --time --mark -1 0 nan nowhere.csv ../..".split()
WORDS += ["", " ", "incidents", "--size", "--share", "--epsilon", "x" * 300, "🚀", "\\", "--"]


@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_no_list_of_arguments_ends_in_a_traceback(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (0, 1, 2, 3), (arguments, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
