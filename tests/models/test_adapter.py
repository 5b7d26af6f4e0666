"""A point process behind a function: the same explanations as the model itself gives, and clear refusals."""

import math

import pytest
import torch

from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.models.from_function import from_callable
from ehd_hf.models.perplexity import dppl, log_perplexity
from ehd_hf.models.ranking import RankingDistillerModel
from ehd_hf.models.window import Window
from ehd_hf.solvers.base import available_solvers
from helpers import AdditiveMTPP, random_events

WEIGHT = [[0.0, 3.0, 0.2], [0.5, 0.0, 0.1], [0.0, 0.2, 1.0]]
EVENTS = [(0.4, 0), (0.9, 2), (1.1, 0), (2.0, 1), (2.2, 0), (2.3, 1), (2.5, 1), (2.6, 1)]


def process():
    return AdditiveMTPP([0.3, 0.2, 0.4], WEIGHT).eval()


def functions(model):
    """log p of times and marks, and log survival, as someone else's code would give them: no gates, no MTPPOutput."""

    def log_prob(times, marks, mask):
        assert (mask.long().diff(dim=1) <= 0).all()  # events stand at the front
        output = model.event_log_prob(times.double(), marks, mask)
        return output.time_log_prob, output.mark_log_prob

    def log_survival(times, marks, mask, until):
        return -model.compensator(times.double(), marks, mask, until.double()[:, None])[:, 0]

    return log_prob, log_survival


@pytest.fixture
def adapted():
    log_prob, log_survival = functions(process())
    return from_callable(log_prob, num_marks=3, log_survival=log_survival)


def without_survival():
    return from_callable(functions(process())[0], num_marks=3)


def explain(model, intensities=False, **options):
    return EHDDistiller.from_mtpp(model, **options).explain(EVENTS, future=3, intensities=intensities)


@pytest.mark.parametrize("padding", ["none", "end", "front", "anywhere"])
@pytest.mark.parametrize("conditioning", ["paper", "survival"])
def test_it_scores_as_the_process_itself(adapted, padding, conditioning):
    times, marks, mask = random_events(5, 11, 3, torch.Generator().manual_seed(3), padding)
    mask[:, -4:] = True
    window = Window(times.masked_fill(~mask, 0.0).cummax(1).values, marks, mask, 4)
    keep = (torch.rand(7, 5, 7, generator=torch.Generator().manual_seed(4)) > 0.4).double()
    ours, expected = (log_perplexity(model, window, conditioning=conditioning) for model in (adapted, process()))
    assert torch.allclose(ours, expected, atol=1e-9)
    for rebuilder in ("compact", "gate"):  # at 0 and 1, a gate deletes
        options = {"conditioning": conditioning, "rebuilder": rebuilder}
        ours, expected = (dppl(model, window, keep, **options) for model in (adapted, process()))
        assert torch.allclose(ours, expected, atol=1e-9)


@pytest.mark.parametrize("padding", ["none", "front", "anywhere"])
def test_positions_pick_the_scores_of_the_process_itself(adapted, padding):
    times, marks, mask = random_events(3, 7, 3, torch.Generator().manual_seed(5), padding)
    keep = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 1]]).double()
    positions = torch.tensor([[6, 0], [3, 5], [4, 4]])  # not in order, and one twice
    # What is left out, or is none, has no score here; the process itself may give it any.
    present = (mask & torch.nn.functional.pad(keep, (0, 3), value=1.0).bool()).gather(1, positions)
    for survived_until in (None, torch.where(mask, times, 0.0)[:, :4].amax(1)):
        options = {"keep": keep, "survived_until": survived_until}
        picked = adapted.event_log_prob(times, marks, mask, positions=positions, **options)
        with torch.no_grad():
            expected = process().event_log_prob(times, marks, mask, **options)
        for name in ("log_prob", "time_log_prob", "mark_log_prob"):
            scores = torch.where(present, expected[name].gather(1, positions), 0.0)
            torch.testing.assert_close(picked[name], scores, atol=1e-9, rtol=0)


@pytest.mark.parametrize("solver", sorted({*available_solvers()} - {"exact_search", "refine", "integrated_gradient"}))
def test_explanations_are_those_of_the_process_itself(adapted, solver):
    ours, expected = (explain(model, solver=solver) for model in (adapted, process()))
    assert ours.distill_mask == expected.distill_mask and ours.status == expected.status == "explained"
    assert ours.certified and ours.one_minimal
    for name in ("dppl_left", "dppl_left_time", "dppl_left_mark", "dppl_distilled", "dppl_empty"):
        assert getattr(ours, name) == pytest.approx(getattr(expected, name), abs=1e-9)


def test_by_default_it_asks_what_the_function_can_answer(adapted):
    explainer = EHDDistiller.from_mtpp(adapted)
    assert explainer.conditioning == "survival" and type(explainer.solver).__name__ == "GreedySearch"
    without = EHDDistiller.from_mtpp(from_callable(functions(process())[0], id2label={0: "a", 1: "b", 2: "c"}))
    assert without.conditioning == "paper"
    answer = without.explain([(time, "abc"[mark]) for time, mark in EVENTS], future=3)
    assert answer.conditioning == "paper" and {event.mark for event in answer.future} == {"b"}


class Constant(torch.nn.Module):
    """The more has happened, the faster."""

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(1.5))
        self.seen = []

    def forward(self, times, marks, mask):
        self.seen.append(times.dtype)
        rate = self.rate * mask.cumsum(1).to(self.rate.dtype)
        return rate.log() - rate * times.diff(dim=1, prepend=torch.zeros_like(times[:, :1]))

    score = forward


@pytest.mark.parametrize("how", ["module", "method", "closure"])
def test_a_module_keeps_its_precision_wherever_it_is_copied(how):
    module = Constant()
    function = {"module": module, "method": module.score, "closure": lambda t, m, k: module(t, m, k)}[how]
    adapted = from_callable(function, num_marks=3, dtype=torch.float32 if how == "closure" else None)
    answer = explain(adapted)
    assert answer.dppl_empty < 0 and math.isfinite(answer.dppl_left)
    assert module.rate.dtype == torch.float32 and set(module.seen) == {torch.float32}  # the user's stays as it is
    copied = next(adapted.double().parameters())
    assert how == "closure" or copied.dtype == torch.float64


def test_one_number_per_event_is_enough():
    total = from_callable(lambda *batch: sum(functions(process())[0](*batch)), num_marks=3)
    ours, theirs = explain(total), explain(without_survival())
    assert ours.dppl_left == pytest.approx(theirs.dppl_left) and ours.distill_mask == theirs.distill_mask


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda model: model.save_pretrained("nowhere"), "cannot be saved"),
        (lambda model: model.sample_next(*random_events(1, 3, 3, torch.Generator(), "none")), "no states"),
        (lambda model: explain(model, intensities=True), "no states"),
        (lambda model: explain(model, solver="integrated_gradient"), "deleted, not faded.*greedy_search"),
        (lambda model: explain(without_survival(), conditioning="survival"), "Pass log_survival"),
        (lambda model: RankingDistillerModel.from_mtpp(model, history=5, future=3), "has none. Explain it by EHD"),
    ],
)
def test_what_a_function_cannot_say_is_refused(adapted, use, message):
    with pytest.raises(ValueError, match=message):
        use(adapted)


@pytest.mark.parametrize(
    ("log_prob", "options", "message"),
    [
        (7, {"num_marks": 3}, "must be functions"),
        (lambda *batch: batch[0], {}, "num_marks=3"),
        (lambda *batch: batch[0], {"num_marks": 3, "id2label": {0: "a"}}, "must name the marks 0..2; got 1"),
    ],
)
def test_bad_arguments_are_refused(log_prob, options, message):
    with pytest.raises(Exception, match=message):
        from_callable(log_prob, **options)


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("log_prob", lambda t, m, k: t.sum(1), r"one log-probability per event, shape \(\d+, \d+\); got \(\d+,\)"),
        ("log_prob", lambda t, m, k: None, "got NoneType"),
        ("log_survival", lambda t, m, k, until: t, r"survival must return .*, shape \((\d+),\); got \(\1, \d+\)\."),
        ("log_survival", lambda t, m, k, until: until[:, None], r"per row, shape \((\d+),\); got \(\1, 1\)\."),
        ("log_survival", lambda t, m, k, until: until.sum(), r"one number per row, shape \(\d+,\); got \(\)\."),
        ("log_survival", lambda t, m, k, until: -0.5, r"one number per row, shape \(\d+,\); got float\."),
    ],
)
def test_a_function_that_returns_something_else_is_told(name, function, message):
    given = {"log_prob": functions(process())[0], name: function}
    with pytest.raises((ValueError, TypeError), match=message):
        explain(from_callable(num_marks=3, **given))


def test_the_time_scale_is_the_mean_positive_interval(adapted):
    times, marks, mask = random_events(3, 7, 3, torch.Generator().manual_seed(6), "none")
    before, scale = adapted.event_log_prob(times, marks, mask).log_prob, adapted.mean_interval.item()
    adapted.fit_time_scale(torch.tensor([0.0, 3.0, 0.0, 5.0, 1.0]))
    assert scale == 1 and adapted.mean_interval == 3
    assert torch.equal(adapted.event_log_prob(times, marks, mask).log_prob, before)  # the function has its own
