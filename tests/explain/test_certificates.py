"""What an explanation claims (how much is lost, that the target is met, that no event can be spared), checked by hand
and by a slow referee that deletes the events, encodes what remains from scratch, in double precision, one set at a
time."""

import copy
import math
from functools import cache
from itertools import combinations, product

import numpy as np
import pyarrow as pa
import pytest
import torch

from ehd_hf.data import windows
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.data.windows import make_windows
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.models.ehd import EHDDistillerModel
from ehd_hf.models.lognormmix import LogNormMixConfig, LogNormMixModel
from ehd_hf.models.ranking import RankingDistillerModel
from ehd_hf.models.window import Window
from ehd_hf.solvers.base import available_solvers, get_solver
from ehd_hf.solvers.integrated_gradient import IntegratedGradient
from ehd_hf.solvers.prefix import RankedBy
from helpers import TINY, AdditiveMTPP, PoissonMTPP, tiny_fullynn, wild

MARGIN = 1e-5
# What an event of mark 0, 1, 2, 3 adds to the rates, in multiples of their base; exact in binary.
INFLUENCES = (0.0, 1.0, 3.0, 0.5)
DETERMINISTIC = [name for name in available_solvers() if name not in ("random_distillation", "shapley")]

REFINES, SOLVERS = ("prefix", "prune"), ("leave_one_out", "recency", "exact_search")


def additive(influences=INFLUENCES, dtype=torch.float64):
    """Rates are base * (1 + S), S the sum of the kept influences, whatever the mark."""
    base = torch.full((len(influences),), 1 / 4, dtype=torch.float64)
    model = AdditiveMTPP(base.tolist(), torch.outer(torch.tensor(influences, dtype=torch.float64), base))
    return model.to(dtype)


def instant(*marks, future=0):
    """Events an hour apart, and a future event in the same moment as the last: nothing hangs on silences, and
    dppl of a kept set is log((1 + S kept) / (1 + S all))."""
    events = [(float(time), mark) for time, mark in enumerate(marks)]
    return [*events, (float(len(marks) - 1), future)]


def ratio(*numbers):
    return pytest.approx(math.log(numbers[0] / numbers[1]), abs=1e-12)


# 1 + S = 8: events worth 0, 1, 3, 0 and 3
HISTORY = instant(0, 1, 2, 0, 2)


def by_hand(solver=None, dtype=torch.float64, **options):
    return EHDDistiller.from_mtpp(additive(dtype=dtype), solver=solver, future=1, **options)


def chosen(answer):
    return [position for position, inside in enumerate(answer.distill_mask) if inside]


# --- worked by hand


def test_the_smallest_set_that_halves_the_likelihood_worked_by_hand():
    answer = by_hand().explain(HISTORY, epsilon=0.5)
    assert chosen(answer) == [2, 4]  # without one of them 5/8 remain, without both 2/8
    assert answer.dppl_left == ratio(2, 8)
    assert answer.dppl_distilled == ratio(7, 8) and answer.dppl_empty == ratio(1, 8)
    assert answer.limit == math.log(0.5) and answer.explained_share == pytest.approx(2 / 3)
    assert answer.certified and answer.one_minimal and answer.status == "explained"
    assert (answer.epsilon, answer.share, answer.size, answer.delta) == (0.5, None, None, None)
    assert answer.conditioning == "survival"
    assert answer.curve == pytest.approx(np.log(np.array([8, 5, 2, 1, 1, 1]) / 8), abs=1e-12)


def test_the_smallest_set_that_loses_a_share_worked_by_hand():
    answer = by_hand().explain(HISTORY, share=0.7)  # (1/8) ** 0.7 = 0.233 lies between 2/8 and 1/8
    assert chosen(answer) == [1, 2, 4] and answer.dppl_left == ratio(1, 8)
    assert answer.limit == pytest.approx(0.7 * math.log(1 / 8)) and answer.certified and answer.one_minimal
    assert answer == by_hand().explain(HISTORY)  # 0.7 is what an MTPP alone is asked with
    assert chosen(by_hand().explain(HISTORY, share=0.6)) == [2, 4]  # (1/8) ** 0.6 = 0.287


def test_a_number_of_events_worked_by_hand():
    for size, left in ((1, 5), (2, 2), (3, 1), (5, 1), (np.int64(99), 1)):  # no more than there are
        answer = by_hand().explain(HISTORY, size=size)
        assert len(answer.distilled) == answer.size == min(size, 5) and answer.dppl_left == ratio(left, 8)
        assert answer.status == "explained" and answer.certified and answer.one_minimal is None
        assert answer.limit is None and answer.epsilon is None and answer.share is None
    several = by_hand().explain([HISTORY, HISTORY[3:]], size=3)
    assert [sum(answer.distill_mask) for answer in several] == [answer.size for answer in several] == [3, 2]


def test_a_set_that_alone_predicts_almost_as_well_worked_by_hand():
    # {2, 4} keeps 7/8 of the likelihood, log(7/8) = -0.134; with the 1 it keeps all of it.
    assert chosen(by_hand().explain(HISTORY, epsilon=0.5, delta=0.2)) == [2, 4]
    strict = by_hand().explain(HISTORY, epsilon=0.5, delta=0.1)
    assert chosen(strict) == [1, 2, 4] and strict.dppl_distilled == pytest.approx(0.0, abs=1e-12)
    assert strict.delta == 0.1 and strict.certified and strict.one_minimal
    # By itself delta is asked for beside the explainer's own target.
    assert by_hand(epsilon=0.5).explain(HISTORY, delta=0.1) == strict
    # A number of events is what it is; whether it also suffices is said.
    assert by_hand().explain(HISTORY, size=2, delta=0.2).status == "explained"
    short = by_hand().explain(HISTORY, size=2, delta=0.1)
    assert short.status == "infeasible" and not short.certified and chosen(short) == [2, 4]


def test_a_share_of_one_or_a_delta_of_zero_is_met_without_a_margin():
    for target in ({"share": 1.0}, {"epsilon": 0.5, "delta": 0.0}):
        answer = by_hand().explain(HISTORY, **target)
        assert chosen(answer) == [1, 2, 4] and answer.constraint_met and answer.status == "explained"
        assert not answer.certified and answer.one_minimal is None


def test_the_drop_of_times_and_of_marks_worked_by_hand():
    # An event of mark 1 adds 2 to the rate of mark 0: rates are (3, 1) with it and (1, 1) without.
    mtpp = AdditiveMTPP([1.0, 1.0], [[0.0, 0.0], [2.0, 0.0]])
    answer = EHDDistiller.from_mtpp(mtpp).explain(instant(1), future=1, epsilon=0.5)
    assert answer.dppl_left == ratio(1, 3)
    assert answer.dppl_left_time == ratio(2, 4) and answer.dppl_left_mark == pytest.approx(math.log(0.5 / 0.75))
    # The other mark, which it makes unlikely, is better off without it: the times still lose.
    answer = EHDDistiller.from_mtpp(mtpp).explain(instant(1, future=1), future=1, size=1)
    assert answer.dppl_left == pytest.approx(0.0, abs=1e-12)
    assert answer.dppl_left_time == ratio(2, 4) and answer.dppl_left_mark == pytest.approx(math.log(0.5 / 0.25))


def test_pruning_drops_what_a_prefix_carries_along():
    events = instant(2, 0, 1)  # by recency the 3 that matters comes last; 1 + S = 5
    prefix = by_hand("recency").explain(events, epsilon=0.5, refine="prefix")
    assert chosen(prefix) == [0, 1, 2] and prefix.dppl_left == ratio(1, 5) and prefix.certified
    assert prefix.one_minimal is None and [event.score for event in prefix.history] == [0.0, 1.0, 2.0]
    pruned = by_hand("recency").explain(events, epsilon=0.5, refine="prune")
    assert chosen(pruned) == [0] and pruned.dppl_left == ratio(2, 5) and pruned.certified and pruned.one_minimal
    assert pruned.curve == prefix.curve == pytest.approx(np.log(np.array([5, 4, 4, 1]) / 5), abs=1e-12)
    assert by_hand("recency").explain(events, epsilon=0.5) == pruned  # prune is what one gets


# --- what cannot be explained


def test_a_history_that_does_not_matter_explains_nothing():
    explainer = EHDDistiller.from_mtpp(PoissonMTPP([0.2, 0.5, 0.7, 1.0]), future=1)
    for target in ({}, {"share": 0.1}, {"epsilon": 0.9}, {"epsilon": 1.0}, {"share": 0.5, "delta": 1.0}):
        for refine in ("prefix", "prune"):
            answer = explainer.explain(HISTORY, refine=refine, **target)
            assert answer.status == "explains_nothing" and not answer.certified and not answer.constraint_met
            assert abs(answer.dppl_empty) < 1e-15 and answer.explained_share is None and answer.one_minimal is None
            assert chosen(answer) == [] and "explains nothing" in str(answer)


def test_rounding_does_not_make_an_idle_history_explain_something():
    generator = np.random.default_rng(0)
    explainer = EHDDistiller.from_mtpp(PoissonMTPP([0.2, 0.5, 0.7, 1.0]), future=3)
    times, marks = generator.exponential(1.0, (20, 8)).cumsum(1), generator.integers(0, 4, (20, 8))
    answers = explainer.explain([list(zip(*row, strict=True)) for row in zip(times, marks, strict=True)])
    assert min(answer.dppl_empty for answer in answers) < 0 < max(answer.dppl_empty for answer in answers)
    assert {answer.status for answer in answers} == {"explains_nothing"}
    assert all(answer.explained_share is None and not answer.constraint_met for answer in answers)
    assert all(answer.tradeoff()["explained_share"].isna().all() for answer in answers)


def test_a_history_that_misleads_explains_nothing():
    # The future is slow; each event of the history said it would be fast: log(1 + S) - (1 + S) tau.
    answer = by_hand().explain([(0.0, 2), (1.0, 1), (2.0, 0)], share=0.5)
    assert answer.dppl_empty == pytest.approx(4 - math.log(5)) and answer.status == "explains_nothing"
    assert chosen(answer) == [] and answer.curve[-1] == pytest.approx(answer.dppl_empty)


def test_where_all_explains_nothing_but_a_part_does_the_part_is_named():
    # Of two future events the first is a 0, which mark 1 calls forth; mark 2 calls forth 3s that never come.
    mtpp = AdditiveMTPP([1.0, 1.0, 1.0, 1.0], [[0] * 4, [4.0, 0, 0, 0], [0, 0, 0, 4.0], [0] * 4])
    events = [(0.0, 1), (1.0, 2), (2.0, 2), (2.0, 0), (2.5, 0)]
    explainer = EHDDistiller.from_mtpp(mtpp, solver="leave_one_out")
    answer = explainer.explain(events, future=2, share=0.7)
    assert answer.dppl_empty > 0 and answer.status == "explained" and answer.certified
    assert chosen(answer) == [0] and answer.dppl_left == min(answer.curve) == answer.dppl_strongest == answer.whole < 0
    assert answer.explained_share == 1 and "Without any history this would be likelier" in str(answer)
    assert max(answer.tradeoff()["explained_share"]) == 1
    # Asked for a factor, that part is an explanation.
    answer = explainer.explain(events, future=2, epsilon=0.6)
    assert chosen(answer) == [0] and answer.status == "explained" and answer.certified and answer.one_minimal
    answer = explainer.explain(events, future=2, epsilon=0.01)
    assert answer.status == "infeasible" and "nothing" not in str(answer)


@pytest.mark.parametrize("refine", ["prefix", "prune"])
@pytest.mark.parametrize("solver", [None, "exact_search", "random_distillation", "refine", "greedy_search"])
def test_a_target_out_of_reach_is_said_with_the_best_set_there_is(solver, refine):
    answer = by_hand(solver).explain(HISTORY, epsilon=0.1, refine=refine)  # 1/8 is the least
    assert answer.status == "infeasible" and not answer.certified and not answer.constraint_met
    assert answer.one_minimal is None and answer.dppl_left == ratio(1, 8) and chosen(answer) == [1, 2, 4]
    assert "No set of events that was tried meets the target" in str(answer)


def test_a_set_that_only_its_solver_believes_in_is_not_passed_on():
    # Random distillation judges its draws by their mean; the one it returns here leaves just half, and is no answer.
    explainer = by_hand("random_distillation")
    prefix, pruned = (explainer.explain(HISTORY, epsilon=0.5, refine=refine) for refine in REFINES)
    assert prefix.status == "explained" and prefix.certified and prefix.one_minimal is None and pruned.one_minimal


def test_the_best_set_need_not_be_the_whole_history():
    mtpp = AdditiveMTPP([1.0, 1.0], [[3.0, 0.0], [0.0, 3.0]])  # marks call forth themselves
    events = [(0.0, 0), (1.0, 1), (1.0, 0), (1.25, 0)]
    answer = EHDDistiller.from_mtpp(mtpp, solver="leave_one_out").explain(events, future=2, epsilon=0.01)
    assert answer.status == "infeasible" and chosen(answer) == [0]
    assert answer.dppl_left == min(answer.curve) < answer.dppl_empty < 0


def test_what_holds_without_a_margin_is_not_certified():
    epsilon = 1 / 8 * (1 + 5e-6)  # the best there is undercuts it, by half a margin
    answer = by_hand("recency").explain(HISTORY, epsilon=epsilon)
    assert answer.status == "explained" and answer.constraint_met and not answer.certified
    assert answer.one_minimal is None  # indeed: the 0 between can be spared
    assert chosen(answer) == [1, 2, 3, 4]


# --- a slow referee


class Referee:
    """Scores the future of one window given any part of its history: deletes, encodes from scratch, adds up."""

    def __init__(self, mtpp, answer, origin=None):
        self.mtpp = copy.deepcopy(mtpp).double().eval()
        self.conditioning = answer.conditioning
        events = answer.history + answer.future
        times = np.array([float(event.time) for event in events])
        self.times = torch.tensor(times - (times[0] if origin is None else origin))
        label2id = {label: mark for mark, label in mtpp.config.id2label.items()}
        self.marks = torch.tensor([label2id[event.mark] for event in events])
        self.num_history, self.num_future = len(answer.history), len(answer.future)
        self.log_prob = cache(self._log_prob)
        self.everything = self.log_prob(frozenset(range(self.num_history)))

    @torch.no_grad()
    def _log_prob(self, kept):
        """log-likelihood of the future's times and of its marks, (2,)."""
        kept = sorted(kept)
        sequence = [*kept, *range(self.num_history, len(self.times))]
        times, marks = self.times[None, sequence], self.marks[None, sequence]
        states, _ = self.mtpp.encode_history(times, marks, torch.ones_like(marks, dtype=torch.bool), None)
        future = slice(len(kept), len(sequence))
        states, marks = states[0, future], marks[0, future]
        # The clock's origin comes first, the last event if nothing is kept.
        last = torch.cat([torch.zeros(1, dtype=torch.float64), times[0]])[future]
        both, one, compensator = self.mtpp.score_intervals(states, times[0, future] - last, marks)
        if self.conditioning == "survival":
            silence = self.times[self.num_history - 1] - last[0]
            compensator[0] -= self.mtpp.total_compensator(states[0], silence)
        return torch.stack([both - compensator, one - both]).sum(1)

    def drops(self, kept):
        """dppl of what is kept: of the times, of the marks, and in all."""
        time, mark = ((self.log_prob(frozenset(kept)) - self.everything) / self.num_future).tolist()
        return time, mark, time + mark

    def left(self, distilled):
        return self.drops(set(range(self.num_history)) - set(distilled))[2]

    def whole(self, curve):
        """What shares are of: the loss without any history; where that is none to speak of, a tenth, the worst on the
        way there."""
        empty = self.drops([])[2]
        return min(curve) if empty > -math.log(1.1) > min(curve) else empty

    def meets(self, answer, distilled, slack=0.0):
        """Whether a set meets what was asked with the margin (and some slack)."""
        left, alone = self.left(distilled), self.drops(distilled)[2]
        limit = math.log(answer.epsilon) if answer.epsilon is not None else answer.share * answer.whole
        enough = answer.delta is None or alone >= MARGIN - answer.delta - slack
        return left < limit - MARGIN + slack and enough


def check(answer, mtpp, refine="prune", rounding=1e-4, origin=None):
    """Every claim of an explanation. `rounding`: how far curves, evaluated in single precision, may be off."""
    referee, inside = Referee(mtpp, answer, origin), chosen(answer)
    time, mark, left = referee.drops(set(range(referee.num_history)) - set(inside))
    alone, empty = referee.drops(inside)[2], referee.drops([])[2]
    expected = (left, time, mark, alone, empty)
    said = (answer.dppl_left, answer.dppl_left_time, answer.dppl_left_mark, answer.dppl_distilled, answer.dppl_empty)
    assert said == pytest.approx(expected, rel=1e-9, abs=1e-7)

    scores = np.array([event.score for event in answer.history])
    order = np.argsort(-scores, kind="stable").tolist()
    curve = [referee.left(order[:size]) for size in range(len(order) + 1)]
    assert answer.curve == pytest.approx(curve, rel=1e-6, abs=rounding)
    assert answer.tradeoff()["size"].tolist() == list(range(len(order) + 1))

    if answer.size is not None:
        assert len(inside) == answer.size and left <= referee.left(order[: answer.size]) + rounding
        assert answer.status == ("explained" if left < 0 else "infeasible")
        return answer.status
    certain = referee.meets(answer, inside)
    whole = referee.whole(curve)
    assert answer.dppl_strongest == pytest.approx(whole, abs=rounding)
    explains = answer.share is None or whole < 0
    assert answer.certified == (certain and explains), answer
    if answer.status == "explained":
        assert answer.certified
        sizes = range(len(inside))
        if refine == "prefix":
            assert set(inside) == set(order[: len(inside)]) and answer.one_minimal is None
            assert not any(referee.meets(answer, order[:size], -rounding) for size in sizes)
        else:
            assert answer.one_minimal is True
            assert not any(referee.meets(answer, set(inside) - {event}, -1e-9) for event in inside)
    else:
        assert answer.one_minimal is None
        assert not any(referee.meets(answer, order[:size], -rounding) and explains for size in range(len(order) + 1))
        assert left == pytest.approx(min(curve), abs=rounding)
        nothing = whole >= 0 and (answer.share is not None or left > -math.log(1.1))
        assert answer.status == ("explains_nothing" if nothing else "infeasible")
    return answer.status


LABELS = dict(enumerate(("deploy", "check", "alert", "login", "ticket", "restart")))
SIZES = TINY | {"history": 7, "future": 4}


def fullynn(seed=0):
    return tiny_fullynn(6, seed, 0.7, id2label=LABELS).float()


def lognormmix(seed=0):
    torch.manual_seed(seed)
    config = LogNormMixConfig(num_marks=6, id2label=LABELS, embedding_size=5, hidden_size=8, num_components=4)
    return wild(LogNormMixModel(config), 0.5, seed).float()


def paper(**config):
    torch.manual_seed(0)
    model = EHDDistillerModel.from_mtpp(fullynn(), **SIZES, **config)
    return wild(model.distill_head, 1.0) and model.float()


def ranking(**config):
    torch.manual_seed(3)
    return RankingDistillerModel.from_mtpp(fullynn(), **SIZES, **config)


def sequences(count, seed=0, longest=10):
    """Of different lengths, on the quarter of an hour, ties among them."""
    generator = np.random.default_rng(seed)
    several = []
    for _ in range(count):
        size = int(generator.integers(5, longest + 1))
        times = 3.0 + np.cumsum(generator.integers(0, 6, size)) / 4
        marks = [LABELS[mark] for mark in generator.integers(0, 6, size)]
        several.append(list(zip(times, marks, strict=True)))
    return several


EXPLAINERS = {
    "gradients of fullynn": lambda: EHDDistiller.from_mtpp(fullynn(), future=4),
    "gradients of lognormmix": lambda: EHDDistiller.from_mtpp(lognormmix(), future=4),
    "the paper's distiller": lambda: EHDDistiller(paper()),
    "the ranking distiller": lambda: EHDDistiller(ranking()),
    "leave one out": lambda: EHDDistiller(paper(), solver="leave_one_out", conditioning="survival"),
}
QUESTIONS = {
    "a share": {"share": 0.6, "refine": "prune"},
    "a share, by prefix": {"share": 0.6, "refine": "prefix"},
    "a factor": {"epsilon": 0.8, "refine": "prune"},
    "a share that suffices": {"share": 0.5, "delta": 0.3, "refine": "prune"},
    "a factor that suffices, by prefix": {"epsilon": 0.9, "delta": 0.2, "refine": "prefix"},
    "a size": {"size": 3, "refine": "prune"},
}


@pytest.fixture(scope="module", params=EXPLAINERS)
def explainer(request):
    return EXPLAINERS[request.param]()


@pytest.mark.parametrize("case", QUESTIONS)
def test_every_claim_holds_before_a_slow_referee(explainer, case):
    for answer in explainer.explain(sequences(3), **QUESTIONS[case]):
        check(answer, explainer.mtpp, QUESTIONS[case]["refine"])
        assert answer.conditioning == explainer.conditioning


def test_a_size_is_nearly_always_the_best_of_all_subsets():
    near = []
    for make in (fullynn, lognormmix):
        explainer = EHDDistiller.from_mtpp(make(), future=2)
        for answer in explainer.explain(sequences(20, seed=3), size=3):
            referee = Referee(explainer.mtpp, answer)
            best = min(map(referee.left, combinations(range(referee.num_history), answer.size)))
            near.append(answer.dppl_left <= best + 0.01 * abs(best))
            assert answer.dppl_left >= best - 1e-6
    assert np.mean(near) >= 0.95


def test_a_size_that_makes_the_future_likelier_is_not_called_an_explanation():
    # An event of mark 1 lowers what is asked about: without it the future is likelier.
    mtpp = AdditiveMTPP([1.0, 1.0], [[0.0, 0.0], [2.0, 0.0]])
    answer = EHDDistiller.from_mtpp(mtpp).explain(instant(1, future=1), future=1, size=1)
    assert answer.status == "infeasible" and not answer.constraint_met and not answer.certified
    assert "comes closest to explaining" in str(answer) and "makes it less likely" in str(answer)


def test_the_referee_has_seen_every_status():
    """Else the test above would show less than it says."""
    seen = []
    for name in ("gradients of fullynn", "gradients of lognormmix"):
        explainer = EXPLAINERS[name]()
        for target in ({"share": 0.6}, {"epsilon": 0.3}):
            seen += [check(answer, explainer.mtpp) for answer in explainer.explain(sequences(5, seed=1), **target)]
    assert min(seen.count(status) for status in ("explained", "explains_nothing", "infeasible")) >= 3


@pytest.mark.parametrize("name", available_solvers())
def test_every_solver_gives_certified_minimal_answers(name):
    explainer = EHDDistiller.from_mtpp(fullynn(1), solver=name, future=3)
    statuses = [check(answer, explainer.mtpp) for answer in explainer.explain(sequences(3, seed=2, longest=9))]
    assert "explained" in statuses


def test_a_solver_may_be_given_as_an_object():
    solvers = (None, "integrated_gradient", IntegratedGradient(num_points=1, per_round=1))
    events = sequences(3, seed=5)
    explainers = [EHDDistiller.from_mtpp(fullynn(), solver=solver, future=4) for solver in solvers]
    default, named, thorough = (explainer.explain(events) for explainer in explainers)
    assert named == default != thorough
    assert all(check(answer, explainers[0].mtpp) for answer in thorough)


def test_the_papers_own_answer_is_certified_where_it_meets_the_target():
    explainer = EHDDistiller(paper())
    for own in explainer.explain(sequences(6)):
        referee = Referee(explainer.mtpp, own)
        assert own.dppl_left == pytest.approx(referee.left(chosen(own)), abs=1e-9)
        assert own.certified == referee.meets(own, chosen(own)) and own.one_minimal is None and own.curve is None
        assert own.status == ("explained" if own.constraint_met else own.status)
        assert all(0 <= event.score <= 1 for event in own.history)  # P(distil)


# --- shapes, padding, batches


def same(one, two, tolerance=1e-9):
    assert one.distill_mask == two.distill_mask and one.status == two.status
    assert one.one_minimal == two.one_minimal and one.certified == two.certified
    for name in ("dppl_left", "dppl_distilled", "dppl_empty", "dppl_left_time", "dppl_left_mark"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), abs=tolerance)
    assert one.curve == pytest.approx(two.curve, abs=1e-5)
    return True


def test_futures_of_different_lengths_at_once_equal_one_at_a_time(explainer):
    several = sequences(3, seed=4)
    before, after = zip(*((one[:-cut], one[-cut:]) for cut, one in enumerate(several, start=1)), strict=True)
    answers = explainer.explain(history=list(before), future=list(after), share=0.6)
    for cut, (answer, one) in enumerate(zip(answers, several, strict=True), start=1):
        assert len(answer.future) == cut and same(answer, explainer.explain(one, future=cut, history="all", share=0.6))
        check(answer, explainer.mtpp)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_an_answer_does_not_depend_on_what_else_is_asked(name, monkeypatch):
    explainer = EHDDistiller.from_mtpp(fullynn(2), solver=name, future=3)
    several = sequences(4, seed=6, longest=9)
    expected = explainer.explain(several)
    backwards = explainer.explain(several[::-1])[::-1]
    with_long = explainer.explain([*several, sequences(1, seed=7, longest=9)[0] + [(99.0, "alert")] * 3])[:-1]
    monkeypatch.setattr(windows, "EVENTS_PER_BATCH", 25)
    in_pieces = explainer.explain(several)
    for others in (backwards, with_long, in_pieces):
        assert all(same(one, two) for one, two in zip(expected, others, strict=True))


@pytest.mark.parametrize("name", ["random_distillation", "shapley"])
def test_solvers_that_draw_at_random_draw_the_same_again(name):
    explainer, several = EHDDistiller.from_mtpp(fullynn(2), solver=name, future=3), sequences(4, seed=6)
    torch.manual_seed(1)
    first = explainer.explain(several)
    torch.manual_seed(2)
    assert explainer.explain(several) == first


def test_one_event_of_history_is_explained_or_not():
    answer = by_hand().explain(instant(2), share=0.7)
    assert chosen(answer) == [0] and answer.certified and answer.one_minimal and len(answer.curve) == 2
    assert by_hand().explain(instant(0), share=0.7).status == "explains_nothing"
    assert by_hand().explain(instant(2), epsilon=0.2).status == "infeasible"


def test_a_model_in_double_precision_gives_the_same_answers(explainer):
    solver = None if isinstance(explainer.solver, RankedBy) else explainer.solver
    options = {"solver": solver, "future": explainer.future, "conditioning": explainer.conditioning}
    double = EHDDistiller(copy.deepcopy(explainer.model).double(), **options)
    answers = (one.explain(sequences(6, seed=8), share=0.7) for one in (explainer, double))
    assert all(same(one, two) for one, two in zip(*answers, strict=True))


# --- rounding


@pytest.mark.parametrize(
    ("solver", "refine", "marks", "remains"),
    [
        *((*way, (3, 1, 2, 2, 1), 2.5 / 9.5) for way in product(SOLVERS, REFINES)),  # without both 3s and a 1
        ("recency", "prune", (2, 1, 3, 0, 2), 2.5 / 8.5),  # without both 3s: no prefix comes near, only what is pruned
        ("recency", "prune", (0, 0, 1, 3, 1), 1.5 / 3.5),  # without both 1s, likewise; rounding has the other sign
    ],
)
def test_a_target_within_rounding_is_decided_in_double_precision(solver, refine, marks, remains):
    """Targets around what remains, closer to one another than single precision can tell."""
    single, double = (by_hand(solver, dtype=dtype) for dtype in (torch.float32, torch.float64))
    masks = set()
    for step in range(-2, 3):
        asked = {"epsilon": remains * math.exp(MARGIN + 3e-8 * (step + 0.5)), "refine": refine}
        one, two = (explainer.explain(instant(*marks), **asked) for explainer in (single, double))
        assert one.distill_mask == two.distill_mask and one.certified and two.certified
        assert one.one_minimal == two.one_minimal == (True if refine == "prune" else None)
        masks.add(one.distill_mask)
    assert len(masks) == 2  # on either side of the target


def far(several, gap):
    """The same sequences with a long silence in the middle of their histories."""
    return [[(time + gap * (place > 2), mark) for place, (time, mark) in enumerate(one)] for one in several]


@pytest.mark.parametrize("gap", [2.0**20, 2.0**27])
def test_certificates_hold_where_float32_cannot_tell_the_times_apart(explainer, gap):
    answers = explainer.explain(far(sequences(4, seed=9), gap), epsilon=0.9)
    for answer in answers:
        check(answer, explainer.mtpp, rounding=1e-2)
    assert sum(answer.certified for answer in answers) > 0


def test_a_clock_that_began_long_ago_changes_nothing(explainer):
    several = sequences(5, seed=10)
    later = [[(1.7e9 + time, mark) for time, mark in one] for one in several]
    for one, two in zip(explainer.explain(several, share=0.7), explainer.explain(later, share=0.7), strict=True):
        assert same(one, two)
        assert [event.time for event in two.history] == [1.7e9 + event.time for event in one.history]


def test_windows_of_a_dataset_that_count_from_long_ago_are_certified_too():
    explainer = EXPLAINERS["gradients of lognormmix"]()
    several = [[(2.0**30 + time, mark) for time, mark in one] for one in sequences(4, seed=11)]
    columns = {}
    for part, where in (("history", slice(None, -4)), ("future", slice(-4, None))):
        columns[f"{part}_times"] = [[time for time, _ in one[where]] for one in several]
        columns[f"{part}_marks"] = [[mark for _, mark in one[where]] for one in several]
    answers = explainer.answers(explainer.given(pa.table(columns)), explainer.question(epsilon=0.95))
    certified = 0
    for _, answer in answers:
        referee = Referee(explainer.mtpp, answer, origin=0.0)  # the model's clock, as exported windows have it
        left, empty = referee.left(chosen(answer)), referee.drops([])[2]
        assert (answer.dppl_left, answer.dppl_empty) == pytest.approx((left, empty), rel=1e-9, abs=1e-9)
        assert answer.certified == (left < math.log(0.95) - MARGIN and answer.status == "explained")
        certified += answer.certified
    assert certified


def test_a_point_process_explains_at_once_and_can_be_saved(tmp_path):
    options, mtpp, several = {"epsilon": 0.8, "conditioning": "paper", "future": 3}, fullynn(), sequences(2, seed=13)
    explainer, before = EHDDistiller.from_mtpp(mtpp, **options), copy.deepcopy(mtpp.state_dict())
    assert repr(explainer) == "EHDDistiller(FullyNNModel, 6 marks, epsilon 0.8, paper conditioning)"
    assert repr(EHDDistiller.from_mtpp(mtpp)).endswith("share 0.7, survival conditioning)")
    expected = explainer.explain(several)
    assert expected[0].conditioning == "paper"
    assert mtpp.dtype == torch.float32 and all(p.requires_grad and p.grad is None for p in mtpp.parameters())
    assert all((value == before[name]).all() for name, value in mtpp.state_dict().items())
    explainer.save_pretrained(tmp_path / "saved")
    for where in (tmp_path / "saved", str(tmp_path / "saved")):
        assert EHDDistiller.from_mtpp(where, **options).explain(several) == expected


# --- distillers as rankers


@pytest.mark.parametrize("make", [paper, ranking])
def test_the_distiller_s_scores_are_the_order_of_a_refined_answer(make):
    model = make()
    answer = EHDDistiller(model).explain(sequences(1, seed=16)[0], size=2, refine="prefix")
    events = answer.history + answer.future
    times = torch.tensor([[event.time for event in events]]) - answer.history[0].time
    marks = torch.tensor([[model.mtpp.config.label2id[event.mark] for event in events]])
    with torch.no_grad():
        scores = model.history_scores(Window(times.float(), marks, torch.ones_like(marks).bool(), 4))[0]
    assert [event.score for event in answer.history] == pytest.approx(scores.tolist(), abs=1e-5)
    assert set(chosen(answer)) == set(scores.argsort(descending=True)[:2].tolist())


def test_the_ranking_distiller_is_pruned_to_its_own_target():
    explainer, several = EHDDistiller(ranking(share=0.6)), sequences(5, seed=17)
    answers = explainer.explain(several)
    assert answers == explainer.explain(several, share=0.6, refine="prune")
    assert {(answer.share, answer.conditioning) for answer in answers} == {(0.6, "survival")}
    own, prefix = (explainer.explain(several, refine=refine) for refine in ("none", "prefix"))
    assert all(answer.curve is None and answer.one_minimal is None for answer in own)
    # Its own answer is the prefix too, but for the margin.
    both = [(one, two) for one, two in zip(own, prefix, strict=True) if one.certified and two.certified]
    assert both and all(one.distill_mask == two.distill_mask for one, two in both)


def test_another_target_than_the_trained_one_is_searched_for():
    several, explainer = sequences(5, seed=18), EHDDistiller(paper())
    for target in ({"epsilon": 0.9}, {"share": 0.5}):
        answers = EHDDistiller(paper(), **target).explain(several)
        assert answers == explainer.explain(several, **target) != explainer.explain(several)
    assert all(answer.curve is None for answer in explainer.explain(several))  # nothing else: its own answer
    assert all(answer.curve is not None for answer in explainer.explain(several, delta=0.5))


# --- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refine": "none"}, 'refine="none" needs a distiller; an MTPP alone answers with "prefix"'),
        ({"refine": "none", "size": 2}, 'refine="none" takes the distiller.s own answer and no target'),
        ({"refine": "none", "delta": 0.1}, 'refine="none" takes the distiller.s own answer and no target'),
    ],
)
def test_a_bad_question_is_refused_before_any_work(options, message, monkeypatch):
    monkeypatch.setattr(EHDDistiller, "load", None)  # not even the events are read
    with pytest.raises(ValueError, match=message):
        by_hand().explain(HISTORY, **options)


EXACT = get_solver("exact_search", max_events=4)
BAD_EXPLAINERS = {
    "a name": (lambda: EHDDistiller("incidents"), "takes a distiller or an MTPP; got str. Open .*from_pretrained"),
    "an unknown solver": (lambda: by_hand("magic"), "solver must be one of backward_elimination, .*; got 'magic'"),
    "a solver's class": (lambda: by_hand(IntegratedGradient), "a solver or the name of one; got <class"),
    "an unknown conditioning": (lambda: by_hand(conditioning="both"), "one of paper, survival; got 'both'"),
    "a future of none": (lambda: EHDDistiller(additive(), future=0), "future must be a number .* at least 1; got 0"),
    "a distiller for an MTPP": (lambda: EHDDistiller.from_mtpp(paper()), "got EHDDistillerModel. .*from_pretrained"),
    "a number for an MTPP": (lambda: EHDDistiller.from_mtpp(5), "needs a point process; got int"),
    "no future": (lambda: EHDDistiller(additive()).explain(HISTORY), "how many of the last events .*Pass future=5"),
    "a long exact search": (lambda: by_hand(EXACT).explain(HISTORY), "at most 4 events; got 5. Use another solver"),
}


@pytest.mark.parametrize("case", BAD_EXPLAINERS)
def test_a_bad_explainer_is_refused(case):
    make, message = BAD_EXPLAINERS[case]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_every_certificate_of_the_bundled_model_holds_before_the_referee():
    """Two hundred windows it was not trained on: each value, each claim, each set one event smaller."""
    explainer = EHDDistiller.from_pretrained("incidents")
    store = make_windows(simulated_splits("incident")["test"], future=5, history=25).sample(200)
    times, marks = store.gather(np.arange(len(store)))
    names = explainer.mtpp.config.id2label
    rows = zip(times.double().tolist(), marks.tolist(), strict=True)
    asked = [{"times": row, "marks": [names[mark] for mark in kinds], "start": 0.0} for row, kinds in rows]
    seen = [check(answer, explainer.mtpp, origin=0.0) for answer in explainer.explain(asked, future=5)]
    assert len(seen) == 200 and seen.count("explained") > 150
