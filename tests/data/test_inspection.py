"""What is said of a table of events before anything is trained."""

import re

import numpy as np
import pytest

from ehd_hf.data.inspection import describe_events, inspect_events
from ehd_hf.data.reading import read_events
from helpers import from_lists, random_sequences as sequences

HOUR = np.arange(1.0, 13.0) + 0.1 * np.sin(np.arange(12))


@pytest.mark.parametrize(
    "times, marks, said",
    [
        ([HOUR], [[0, 1] * 6], "one sequence only"),
        ([HOUR] * 5, [[0] * 12] * 5, "one kind.*mark column"),
        ([HOUR] * 5, [[0, 1] * 6] * 5, "60 events are few"),
        ([np.ones(12)] * 5, [[0, 1] * 6] * 5, r"equal \(0 h\)"),
        ([np.arange(12.0)] * 5, [[0, 1] * 6] * 5, r"equal \(1 h\)"),
        ([np.cumsum(np.tile([0.01, 0.01, 0.01, 9.0], 3))] * 5, [[0, 1] * 6] * 5, "bursts.*0.01 h.*2.4"),
        ([np.repeat(HOUR[:6], 2)] * 5, [[0, 1] * 6] * 5, "intervals are 0"),
        ([np.repeat(HOUR[:6], 2)] * 5, [np.repeat([0, 1] * 3, 2)] * 5, "30 events repeat the one before"),
        ([HOUR] * 5 + [HOUR[:4]] * 4, [[0, 1] * 6] * 5 + [[0, 1, 0, 1]] * 4, "4 of 9 sequences have fewer than 9"),
        ([HOUR] * 5, [[0, 1] * 5 + [0, 2]] + [[0, 1] * 6] * 4, r"1 mark happens fewer than 20 times \(2\)"),
    ],
)
def test_what_may_go_wrong_is_said(times, marks, said):
    warnings = inspect_events(from_lists(times, marks, time_unit="h")).warnings
    assert any(re.search(said, warning) for warning in warnings), warnings


def test_healthy_events_are_not_warned_of():
    assert inspect_events(sequences([40] * 60)).warnings == []


def test_the_figures_are_those_of_the_events():
    figures = inspect_events(from_lists([[1.0, 2.0, 4.0], [0.0, 8.0]], [[0, 1, 1], [1, 1]])).figures
    assert (figures["sequences"], figures["events"], figures["marks"]) == (2, 5, 2)
    assert figures["mark_counts"] == {"1": 4, "0": 1} and figures["tied"] == 0.0
    assert figures["interval"]["mean"] == pytest.approx((1 + 2 + 8) / 3) and figures["interval"]["median"] == 2.0


def test_spread_times_are_inspected_as_the_source_has_them(tmp_path):
    rows = [f"{user},2026-03-{day:02d},{'ab'[n % 2]}" for user in range(6) for n, day in enumerate((1, 1, 2, 4, 4, 9))]
    (tmp_path / "log.csv").write_text("user,date,type\n" + "\n".join(rows) + "\n")
    read = read_events(tmp_path / "log.csv")
    findings = inspect_events(read.events)
    assert findings.figures["tied"] == pytest.approx(2 / 5) and findings.figures["interval"]["median"] == 1.0
    assert (findings.figures["from"], findings.figures["to"]) == ("2026-03-01 00:00:00", "2026-03-09 00:00:00")
    described = dict(describe_events(findings, read.reading))
    assert described["times"] == "timestamps, here in days" and described["from, to"] == "2026-03-01, 2026-03-09"
    assert "'date'" in described["columns"]
