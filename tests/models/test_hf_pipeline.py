"""The pipeline that travels with a distiller answers as the explainer does."""

import pytest

from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.models.hf_pipeline import EventHistoryPipeline


@pytest.fixture(scope="module")
def explainer():
    return EHDDistiller.from_pretrained("incidents")


EVENTS = [(0.5 * i, ["deploy", "alert", "ticket"][i % 3]) for i in range(11)]


def test_the_pipeline_answers_as_the_explainer_does(explainer):
    pipeline = EventHistoryPipeline(explainer.model, device=-1)
    for options in ({"future": 2}, {"future": 3, "history": 4}, {}):
        expected = explainer.explain(EVENTS, refine="none", **options).to_dict()
        answer = pipeline(EVENTS, **options)
        assert answer == {key: expected[key] for key in answer}
    numbers = {"deploy": 0, "alert": 2, "ticket": 6}
    by_number = {"times": [time for time, _ in EVENTS], "marks": [numbers[mark] for _, mark in EVENTS]}
    assert pipeline(by_number) == pipeline(EVENTS) and pipeline([EVENTS, by_number]) == [pipeline(EVENTS)] * 2
    columns = {name: [values] for name, values in by_number.items()} | {"start": [-1.0]}
    neural = EHDDistiller.from_pretrained("incidents-paper")  # a Hawkes process does not ask when watching began
    started, pipeline = neural.explain(columns, refine="none"), EventHistoryPipeline(neural.model, device=-1)
    assert pipeline(by_number | {"start": -1.0})["dppl_left"] == started.dppl_left != pipeline(EVENTS)["dppl_left"]


@pytest.mark.parametrize(
    ("events", "options", "says"),
    [
        (EVENTS, {"future": 0}, "future must be a number of events of at least 1; got 0"),
        (EVENTS, {"futures": 3}, "takes future and history; got unknown futures"),
        (EVENTS, {"future": 11}, "has 11 events, all of them in the future of 11"),
        (EVENTS[::-1], {}, "a mark for every time, in order"),
        ([(0.0, "deploy"), (1.0, "party")], {"future": 1}, "knows the marks deploy, .*; got 'party'"),
    ],
)
def test_bad_input_is_answered_in_words(explainer, events, options, says):
    with pytest.raises(ValueError, match=says):
        EventHistoryPipeline(explainer.model, device=-1)(events, **options)
