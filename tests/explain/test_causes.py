"""Causes of events against what they must be: posteriors of known processes, real deletions, enumerations of trees."""

import itertools
import json

import networkx
import numpy as np
import pytest
import torch
from scipy import stats
from test_certificates import LABELS, fullynn, lognormmix, sequences
from test_what_if import hawkes_of

from ehd_hf.data.synthetic import delayed_hawkes, incident_hawkes
from ehd_hf.explain.causes import cause_probabilities
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.trace import Edges, Trace
from ehd_hf.models.attention import AttentionConfig, AttentionModel
from ehd_hf.models.ensemble import EnsembleModel
from ehd_hf.models.from_function import from_callable
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from ehd_hf.models.lognormmix import LogNormMixConfig, LogNormMixModel
from ehd_hf.models.window import Window
from helpers import random_window, tiny_fullynn, wild

# --- a Hawkes process in the model's place


def added(process, lags, causes, effects):
    """What causes add to the intensity of effects after lags, by scipy's gamma densities."""
    pair = causes, effects
    density = stats.gamma.pdf(lags, process.shape[pair], scale=process.scale[pair])
    return process.branching[pair] * np.where(lags > 0, density, 0.0)


def posterior(process, times, marks):
    """Of each event the posterior probability of each earlier one to be its parent, (T, T), and of an immigrant."""
    rates = np.array(
        [
            [added(process, times[i] - times[j], marks[j], marks[i]) * (j < i) for j in range(len(times))]
            for i in range(len(times))
        ]
    )
    whole = process.base_rates[marks] + rates.sum(1)
    return rates / whole[:, None], process.base_rates[marks] / whole


def exact(process):
    """The process as functions of log-probability and survival, in the model's place."""
    every = np.arange(process.num_marks)

    def survived(times, marks, since, until):
        pair = marks[:, None], every
        before, after = (
            stats.gamma.cdf(np.maximum(when - times, 0)[:, None], process.shape[pair], scale=process.scale[pair])
            for when in (since, until)
        )
        return -process.base_rates.sum() * (until - since) - (process.branching[pair] * (after - before)).sum()

    def one(times, marks):
        values, since = [], 0.0
        for place, (time, mark) in enumerate(zip(times, marks, strict=True)):
            past = times[:place], marks[:place]
            rate = process.base_rates[mark] + added(process, time - past[0], past[1], mark).sum()
            values.append(np.log(rate) + survived(*past, since, time))
            since = time
        return values

    def log_prob(times, marks, mask):
        scores = torch.zeros_like(times)
        for row, length in enumerate(mask.sum(1).tolist()):
            scores[row, :length] = torch.tensor(one(times[row, :length].numpy(), marks[row, :length].numpy()))
        return scores

    def log_survival(times, marks, mask, until):
        rows = zip(times.numpy(), marks.numpy(), mask.sum(1).tolist(), until.tolist(), strict=True)
        values = [survived(t[:n], m[:n], t[n - 1] if n else 0.0, end) for t, m, n, end in rows]
        return torch.tensor(values, dtype=times.dtype)

    return from_callable(log_prob, log_survival=log_survival, id2label=process.id2label)


@pytest.mark.parametrize(
    "process, place, horizon",
    [(delayed_hawkes(), hawkes_of, 150.0), (incident_hawkes(), exact, 12.0)],
    ids=["the backbone", "a function"],
)
def test_causes_are_the_parent_posterior_of_a_hawkes_process(process, place, horizon):
    model = place(process)
    model.config.id2label = process.id2label
    events = process.simulate(horizon, 2, np.random.default_rng(1)).sequences
    traces = EHDDistiller.from_mtpp(model).trace(events, history="all")
    assert sum(map(len, traces)) > 20
    for trace, (times, marks) in zip(traces, events, strict=True):
        expected, immigrant = posterior(process, np.asarray(times), np.asarray(marks))
        found = np.zeros_like(expected)
        found[trace.edges.effect, trace.edges.cause] = trace.edges.probability
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(trace.p_none, immigrant, atol=1e-6)
        answer = EHDDistiller.from_mtpp(model).why(list(zip(times, marks, strict=True)), history="all")
        np.testing.assert_allclose(answer.probability, expected[-1, :-1], atol=1e-6)
        assert answer.p_none == pytest.approx(immigrant[-1], abs=1e-6)


# --- deletions are deletions


def backbones():
    torch.manual_seed(0)
    sizes = {"num_marks": 6, "hidden_size": 8, "num_components": 4}
    hawkes = wild(HawkesModel(HawkesConfig(num_marks=6, num_scales=3, num_shapes=3)))
    several = EnsembleModel.of([lognormmix(1), lognormmix(2)])
    yield from (tiny_fullynn(6, scale=0.7), tiny_fullynn(6, scale=0.5, recent_marks=True))
    yield wild(LogNormMixModel(LogNormMixConfig(embedding_size=5, mark_mode="interval", **sizes)), 0.5)
    yield wild(LogNormMixModel(LogNormMixConfig(embedding_size=5, recent_marks=True, **sizes)), 0.5)
    yield from (hawkes, wild(AttentionModel(AttentionConfig(num_heads=2, **sizes)), 0.5), several)


def without(window, event):
    """The sequences of a window with one event really taken out."""
    rest = [place for place in range(window.times.shape[1] - 1) if place != event]
    return window.times[:, rest], window.marks[:, rest], window.mask[:, rest]


@torch.no_grad()
def intensities(model, events, window):
    """Of the last event's mark and of all marks, just before it, given these events, encoded from scratch."""
    states, last_times = model.encode_history(*events, None)
    rates = model.mark_intensities(states[:, -1], window.times[:, -1] - last_times[:, -1])
    return rates.gather(1, window.marks[:, -1:])[:, 0], rates.sum(1)


@pytest.mark.parametrize("model", list(backbones()), ids=lambda model: type(model).__name__)
def test_causes_are_those_of_sequences_with_the_event_taken_out(model):
    model = model.double().eval()
    window = random_window(500, 9, 1, 6, seed=3)
    window.times[::7, 5] = window.times[::7, 4]  # events at the same time
    found = cause_probabilities(model, window)
    whole = intensities(model, without(window, None), window)
    parts = [intensities(model, without(window, event), window) for event in range(9)]
    of_mark, of_all = (torch.stack(values, 1) for values in zip(*parts, strict=True))
    share, now = 1 - of_mark / whole[0][:, None], 1 - of_all / whole[1][:, None]
    carried = share.clamp(min=0).sum(1, keepdim=True)
    expected = torch.where(share > 0, share / carried.clamp(min=1), share)
    assert float((found.probability - expected).abs().max()) <= 1e-8
    assert float((found.p_none - (1 - carried[:, 0]).clamp(min=0)).abs().max()) <= 1e-8
    assert float((found.now - now).abs().max()) <= 1e-8
    kind = 1 - (of_mark / of_all) / (whole[0] / whole[1])[:, None]
    assert float((found.kind - kind).abs().max()) <= 1e-8
    assert float(share.abs().max()) > 0.01


@pytest.mark.parametrize("padding", ["begin", "end"])
def test_padding_changes_no_cause(padding):
    model = fullynn(1).double()
    window = random_window(8, 6, 1, 6, seed=4)
    nothing = torch.zeros(8, 3)
    padded = Window(
        *(torch.cat([nothing.to(part.dtype), part], 1) for part in (window.times, window.marks, window.mask)), 1
    )
    expected, found = cause_probabilities(model, window), cause_probabilities(model, padded)
    torch.testing.assert_close(found.probability[:, 3:], expected.probability)
    assert not found.probability[:, :3].any() and torch.equal(found.p_none, expected.p_none)


def test_causes_are_of_one_event():
    with pytest.raises(ValueError, match="causes are of one event; got windows of 2"):
        cause_probabilities(fullynn(), random_window(1, 3, 2, 6))


# --- traces


@pytest.fixture(scope="module")
def small():
    """Six events, every pair an edge; the third pair holds its effect back."""
    generator = np.random.default_rng(0)
    pairs = [(effect, cause) for effect in range(6) for cause in range(effect)]
    effect, cause = np.array(pairs).T
    probability = generator.uniform(0, 1, len(pairs))
    none = np.ones(6)
    for place in range(1, 6):
        none[place] = generator.uniform(0.1, 0.5)
        probability[effect == place] *= (1 - none[place]) / probability[effect == place].sum()
    times, marks = np.cumsum(generator.uniform(0.5, 2, 6)), tuple("abcabc")
    return Trace(times, marks, Edges(effect, cause, probability, none), times[effect] - times[cause], "s", "h")


def trees(trace):
    """Every way the events may have come about: the parent of each, None if it has none; and the probability."""
    number = len(trace)
    chances = [{None: trace.p_none[place]} for place in range(number)]
    for effect, cause, probability in zip(*trace.edges[:3], strict=True):
        chances[effect][cause] = probability
    for parents in itertools.product(*chances):
        yield parents, np.prod([chance[parent] for chance, parent in zip(chances, parents, strict=True)])


def line(parents, event):
    """The event and its ancestors, the root last."""
    while event is not None:
        yield event
        event = parents[event]


def test_roots_paths_and_effects_are_those_of_all_trees(small):
    roots, lines, descends = np.zeros(6), {}, np.zeros((6, 6))
    for parents, weight in trees(small):
        *_, root = line(parents, 5)
        roots[root] += weight
        path = tuple(reversed(list(line(parents, 5))))
        lines[path] = lines.get(path, 0.0) + weight
        for event in range(6):
            for ancestor in line(parents, event):
                descends[ancestor, event] += weight
    found = small.roots(5).set_index("event").probability
    np.testing.assert_allclose(found[list(range(6))], roots, atol=1e-12)
    assert found.sum() == pytest.approx(1) and found.is_monotonic_decreasing
    for start in range(6):
        effects = small.effects(start).set_index("event").probability
        later = list(range(start + 1, 6))
        assert sorted(effects.index) == later
        np.testing.assert_allclose(effects[later], descends[start, later], atol=1e-12)
    ways = small.paths(5, most=99)
    assert {tuple(event.position for event in way.events): pytest.approx(way.probability) for way in ways} == lines
    assert [way.probability for way in ways] == pytest.approx(sorted(lines.values(), reverse=True))
    assert small.paths(-1)[0] == ways[0] and len(small.paths(5)) == 5


def test_the_whole_trace_of_a_log_is_why_of_each_event():
    explainer = EHDDistiller.from_mtpp(fullynn(2))
    log = sequences(1, seed=3, longest=14)[0]
    trace = explainer.trace(log, history=5)
    frame = trace.to_frame()
    assert list(frame) == ["event", "cause", "probability", "lag"]
    for place in range(len(log)):
        answer, rows = explainer.why(log, event=place, history=5), frame[frame.event == place]
        assert trace.p_none[place] == pytest.approx(answer.p_none, abs=1e-5)
        expected = {event.position: event.score for event in answer.history if event.score}
        assert dict(zip(rows.cause, rows.probability, strict=True)) == pytest.approx(expected, abs=1e-5)
        np.testing.assert_allclose(rows.lag, [log[place][0] - log[cause][0] for cause in rows.cause])
    few = explainer.trace(log, history=5, at_least=0.2).to_frame()
    assert (few.probability.abs() >= 0.2).all() and len(few) == (frame.probability.abs() >= 0.2).sum()
    for bad in (-0.1, 1, True, "a"):
        with pytest.raises(ValueError, match="at_least must be a probability"):
            explainer.trace(log, at_least=bad)
    for bad in (len(log), -len(log) - 1, True, "alert"):
        with pytest.raises(ValueError, match="event must be the position of an event"):
            trace.roots(bad)


def test_blocks_of_any_size_give_the_same_trace(monkeypatch):
    explainer = EHDDistiller.from_mtpp(fullynn(2))
    several = sequences(4, seed=5)
    whole = explainer.trace(several)
    monkeypatch.setattr("ehd_hf.explain.trace._EVENTS_AT_ONCE", 3)
    for one, other in zip(whole, explainer.trace(several), strict=True):
        np.testing.assert_array_equal(one.edges.effect, other.edges.effect)
        np.testing.assert_allclose(one.edges.probability, other.edges.probability, atol=1e-6)


def test_a_trace_is_a_graph_for_networkx(small):
    graph = small.to_networkx()
    assert isinstance(graph, networkx.DiGraph) and networkx.is_directed_acyclic_graph(graph)
    assert graph.number_of_nodes() == 6 and graph.number_of_edges() == 15
    assert graph.nodes[0] == {"time": small.times[0], "mark": "a", "p_none": 1.0}
    assert graph.edges[1, 4]["lag"] == pytest.approx(small.times[4] - small.times[1])


# Of each phase of the Trace Event Format ("Trace Event Format", Google, the tables of sections 3.2 to 3.6), the fields
# that must be there besides "ph" and "pid".
REQUIRED = {"M": {"name", "args"}, "X": {"name", "cat", "ts", "dur", "tid"}}
REQUIRED |= dict.fromkeys("sf", {"name", "cat", "id", "ts", "tid"})


def test_the_file_for_perfetto_has_the_documented_fields(small, tmp_path):
    value = small.to_perfetto(tmp_path / "trace.json", at_least=0.05)
    assert json.loads((tmp_path / "trace.json").read_text()) == value
    assert value["displayTimeUnit"] in ("ms", "ns")
    rows = value["traceEvents"]
    for row in rows:
        assert REQUIRED[row["ph"]] | {"ph", "pid"} <= set(row), row
        assert isinstance(row["pid"], int) and isinstance(row.get("tid", 0), int)
        assert all(isinstance(row.get(name, 0.0), float) for name in ("ts", "dur"))  # in microseconds
    assert {row["args"]["name"] for row in rows if row["name"] == "thread_name"} == {"a", "b", "c"}
    assert sum(row["ph"] == "X" for row in rows) == len(small)
    slices = {(row["tid"], row["ts"]): row["args"]["event"] for row in rows if row["ph"] == "X"}
    flows = {}  # by id: a start and an end, both within a slice ("bp": "e" binds to the enclosing one)
    for row in rows:
        if row["ph"] in "sf":
            assert row["ph"] == "s" or row["bp"] == "e"
            flows.setdefault(row["id"], []).append(slices[row["tid"], row["ts"]])
    drawn = small.to_frame().query("probability >= 0.05")
    assert sorted(map(tuple, flows.values())) == sorted(zip(drawn.cause, drawn.event, strict=True))
    assert slices[1, 3600e6 * (small.times[3] - small.times[0])] == 3  # hours as microseconds


def test_text_for_graphviz_quotes_names_and_draws_the_likely(small):
    text = small.to_graphviz(at_least=0.2)
    assert text.startswith("digraph trace {") and text.rstrip().endswith("}")
    assert text.count("->") == (small.edges.probability >= 0.2).sum()
    odd = Trace(small.times, ('say "x"\n', *small.marks[1:]), small.edges, small.lags)
    assert r"say \"x\"\n" in odd.to_graphviz(0.0)


def test_a_trace_in_words(small):
    assert str(small).startswith("6 events, ") and "in expectation" in str(small)


@pytest.mark.parametrize(
    "asked, message",
    [
        ("no", "no kind of event 'no'; the model knows deploy, check, alert, login, ticket and 1 more. Name one"),
        ("e", "'e' may be deploy, check, alert, ticket, restart. Write the name that is meant"),
        (99, "event must be the index of an event, from -3 to 2; got 99 in sequence 0 of 3 events"),
        (1.4, "no event is at 1.4; the nearest are alert at 1.0 .event=0., deploy at 2.0 .event=1.. Name one"),
        (2.0, "several events are at 2.0; these are deploy at 2.0 .event=1., alert at 2.0 .event=2.. Name one"),
        ("check", "there is no event 'check' here; the marks that occur are deploy, alert. Name another"),
        (True, "an index, a time or the name of a mark; got bool"),
        ("2026-01-01", "no kind of event '2026-01-01'"),
        (None, "got NoneType"),
    ],
)
def test_an_event_that_is_not_there_is_named_with_those_that_are(asked, message):
    with pytest.raises(ValueError, match=message):
        EHDDistiller.from_mtpp(fullynn()).why([(1.0, "alert"), (2.0, "deploy"), (2.0, "alert")], event=asked)


def test_unknown_marks_of_a_log_are_refused():
    with pytest.raises(ValueError, match="marks must be among"):
        EHDDistiller.from_mtpp(fullynn()).why([(1.0, "alert"), (2.0, "earthquake")])
    assert "earthquake" not in LABELS.values()
