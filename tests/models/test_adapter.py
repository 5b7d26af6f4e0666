"""A point process behind a function: the same explanations as the model itself gives, and clear refusals."""

import math

import pytest
import torch

from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.models.from_function import from_callable
from ehd_hf.models.perplexity import dppl, keep_gradient, log_perplexity
from ehd_hf.models.ranking import RankingDistillerModel
from ehd_hf.models.window import Window
from ehd_hf.solvers.base import available_solvers
from helpers import AdditiveMTPP, random_events, random_window

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


@pytest.mark.parametrize("padding", ["none", "end", "front", "anywhere"])
@pytest.mark.parametrize("conditioning", ["paper", "survival"])
def test_it_scores_as_the_process_itself(adapted, padding, conditioning):
    times, marks, mask = random_events(5, 11, 3, torch.Generator().manual_seed(3), padding)
    mask[:, -4:] = True
    times = times.masked_fill(~mask, 0.0).cummax(1).values
    keep = (torch.rand(7, 5, 7, generator=torch.Generator().manual_seed(4)) > 0.4).double()
    for rebuilder in ("compact", "gate"):  # at 0 and 1, a gate deletes
        window = Window(times, marks, mask, 4)
        how = {"conditioning": conditioning, "rebuilder": rebuilder}
        assert torch.allclose(dppl(adapted, window, keep, **how), dppl(process(), window, keep, **how), atol=1e-9)
        expected = log_perplexity(process(), window, conditioning=conditioning)
        assert torch.allclose(log_perplexity(adapted, window, conditioning=conditioning), expected, atol=1e-9)


@pytest.mark.parametrize("padding", ["none", "front", "anywhere"])
def test_positions_pick_the_scores_of_the_process_itself(adapted, padding):
    times, marks, mask = random_events(3, 7, 3, torch.Generator().manual_seed(5), padding)
    keep = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 1]]).double()
    positions = torch.tensor([[6, 0], [3, 5], [4, 4]])  # not in order, and one twice
    until = torch.where(mask, times, 0.0)[:, :4].amax(1)
    for survived_until in (None, until):
        how = {"keep": keep, "survived_until": survived_until}
        some = adapted.event_log_prob(times, marks, mask, positions=positions, **how)
        with torch.no_grad():
            expected = process().event_log_prob(times, marks, mask, **how)
        for row, picked in enumerate(positions.tolist()):
            for column, event in enumerate(picked):
                # What is left out, or is none, has no score here; the process itself may give it any.
                present = bool(mask[row, event]) and (event >= 4 or keep[row, event] == 1)
                for name in ("log_prob", "time_log_prob", "mark_log_prob"):
                    score = float(expected[name][row, event]) if present else 0.0
                    assert float(some[name][row, column]) == pytest.approx(score, abs=1e-9), (name, row, event)


@pytest.mark.parametrize("solver", ["greedy_search", "backward_elimination", "leave_one_out", "recency", "shapley"])
def test_explanations_are_those_of_the_process_itself(adapted, solver):
    ours = EHDDistiller.from_mtpp(adapted, solver=solver).explain(EVENTS, future=3)
    expected = EHDDistiller.from_mtpp(process(), solver=solver).explain(EVENTS, future=3)
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


@pytest.mark.parametrize("solver", [name for name in available_solvers() if name not in ("exact_search", "refine")])
def test_every_solver_works_or_says_why_not(adapted, solver):
    explainer = EHDDistiller.from_mtpp(adapted, solver=solver)
    if solver == "integrated_gradient":
        with pytest.raises(ValueError, match="deleted, not faded.*greedy_search"):
            explainer.explain(EVENTS, future=3)
    else:
        assert explainer.explain(EVENTS, future=3).status == "explained"


class Constant(torch.nn.Module):
    """Independent of everything but the number of events so far."""

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(1.5))
        self.seen = []

    def forward(self, times, marks, mask):
        self.seen.append(times.dtype)
        number = mask.cumsum(1).to(self.rate.dtype)
        silence = times.diff(dim=1, prepend=torch.zeros_like(times[:, :1]))
        rate = self.rate * number  # the more has happened, the faster
        return rate.log() - rate * silence

    score = forward


@pytest.mark.parametrize("how", ["module", "method", "closure"])
def test_a_module_keeps_its_precision_wherever_it_is_copied(how):
    module = Constant()
    function = {"module": module, "method": module.score, "closure": lambda t, m, k: module(t, m, k)}[how]
    adapted = from_callable(function, num_marks=3, dtype=torch.float32 if how == "closure" else None)
    answer = EHDDistiller.from_mtpp(adapted).explain(EVENTS, future=3)
    assert answer.dppl_empty < 0 and math.isfinite(answer.dppl_left)
    assert module.rate.dtype == torch.float32 and set(module.seen) == {torch.float32}  # the user's stays as it is
    copied = next(adapted.double().parameters())
    assert how == "closure" or copied.dtype == torch.float64


def test_one_number_per_event_is_enough():
    log_prob, _ = functions(process())
    total = from_callable(lambda *batch: sum(log_prob(*batch)), num_marks=3)
    pair = from_callable(log_prob, num_marks=3)
    ours, theirs = (EHDDistiller.from_mtpp(model).explain(EVENTS, future=3) for model in (total, pair))
    assert ours.dppl_left == pytest.approx(theirs.dppl_left) and ours.distill_mask == theirs.distill_mask


def test_gradients_in_gates_are_refused(adapted):
    with pytest.raises(ValueError, match="deleted, not faded"):
        keep_gradient(adapted, random_window(2, 4, 2, 3), torch.full((4,), 0.5))


@pytest.mark.parametrize(
    "use, said",
    [
        (lambda model: model.save_pretrained("nowhere"), "cannot be saved"),
        (lambda model: model.sample_next(*random_events(1, 3, 3, torch.Generator(), "none")), "no states"),
        (lambda model: EHDDistiller.from_mtpp(model).explain(EVENTS, future=3, intensities=True), "no states"),
    ],
)
def test_what_a_function_cannot_say_is_refused(adapted, use, said):
    with pytest.raises(ValueError, match=said):
        use(adapted)


def test_no_distiller_can_be_trained_on_a_function(adapted):
    with pytest.raises(ValueError, match="has none. Explain it by EHDDistiller.from_mtpp"):
        RankingDistillerModel.from_mtpp(adapted, history=5, future=3)


def test_survival_needs_its_function():
    explainer = EHDDistiller.from_mtpp(from_callable(functions(process())[0], num_marks=3), conditioning="survival")
    with pytest.raises(ValueError, match="Pass log_survival"):
        explainer.explain(EVENTS, future=3)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"log_prob": 7, "num_marks": 3}, "must be functions"),
        ({"log_prob": lambda *batch: batch[0]}, "num_marks=3"),
        (
            {"log_prob": lambda *batch: batch[0], "num_marks": 3, "id2label": {0: "a"}},
            "id2label must name the marks 0..2; got 1",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, said):
    with pytest.raises(Exception, match=said):
        from_callable(arguments.pop("log_prob"), **arguments)


@pytest.mark.parametrize(
    "log_prob, said",
    [
        (lambda t, m, k: t.sum(1), r"one log-probability per event, shape \(\d+, \d+\); got \(\d+,\)"),
        (lambda t, m, k: None, "got NoneType"),
    ],
)
def test_a_function_that_returns_something_else_is_told(log_prob, said):
    with pytest.raises((ValueError, TypeError), match=said):
        EHDDistiller.from_mtpp(from_callable(log_prob, num_marks=3)).explain(EVENTS, future=3)


@pytest.mark.parametrize(
    "log_survival, said",
    [
        (
            lambda t, m, k, until: t,
            r"log_survival must return one number per row, shape \((\d+),\); got \(\1, \d+\)\.",
        ),
        (lambda t, m, k, until: until[:, None], r"one number per row, shape \((\d+),\); got \(\1, 1\)\."),
        (lambda t, m, k, until: until.sum(), r"one number per row, shape \(\d+,\); got \(\)\."),
        (lambda t, m, k, until: -0.5, r"one number per row, shape \(\d+,\); got float\."),
    ],
)
def test_a_survival_function_that_returns_something_else_is_told(log_survival, said):
    adapted = from_callable(functions(process())[0], num_marks=3, log_survival=log_survival)
    with pytest.raises(ValueError, match=said):
        EHDDistiller.from_mtpp(adapted).explain(EVENTS, future=3)


def test_the_time_scale_is_the_mean_positive_interval(adapted):
    times, marks, mask = random_events(3, 7, 3, torch.Generator().manual_seed(6), "none")
    before = adapted.event_log_prob(times, marks, mask).log_prob
    assert adapted.mean_interval == 1
    adapted.fit_time_scale(torch.tensor([0.0, 3.0, 0.0, 5.0, 1.0]))
    assert adapted.mean_interval == 3
    assert torch.equal(adapted.event_log_prob(times, marks, mask).log_prob, before)  # the function has its own
