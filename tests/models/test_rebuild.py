"""A keep mask -> the rebuilt sequence, against deletion written as a loop."""

import pytest
import torch

from ehd_hf.models.rebuild import compact, pull_up, select
from helpers import random_events


def delete_by_loop(times, marks, mask, keep_mask):
    """What is left of each row: a list of (position, time, mark), in order."""
    rows = [[i for i in range(times.shape[1]) if mask[row, i] and keep_mask[row, i]] for row in range(len(times))]
    return [[(i, times[row, i].item(), marks[row, i].item()) for i in left] for row, left in enumerate(rows)]


def rows_of(rebuilt):
    """The same from a rebuilt sequence, whose events must stand at the front."""
    rows = []
    for times, marks, mask, order in zip(*rebuilt, strict=True):
        count = int(mask.sum())
        assert mask[:count].all() and not mask[count:].any()
        rows.append(list(zip(order[:count].tolist(), times[:count].tolist(), marks[:count].tolist(), strict=True)))
    return rows


def test_a_case_by_hand():
    times = torch.tensor([[1.0, 2.0, 4.0, 7.0], [0.5, 0.5, 0.5, 9.0]])
    marks = torch.tensor([[3, 1, 2, 0], [1, 2, 3, 0]])
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    keep_mask = torch.tensor([[False, True, False, True], [True, False, True, True]])
    rebuilt = compact(times, marks, mask, keep_mask)
    assert rebuilt.times.tolist() == [[2, 7, 1, 4], [0.5, 0.5, 0.5, 9]]
    assert rebuilt.marks.tolist() == [[1, 0, 3, 2], [1, 3, 2, 0]]
    assert rebuilt.mask.tolist() == [[True, True, False, False], [True, True, False, False]]
    assert rebuilt.order.tolist() == [[1, 3, 0, 2], [0, 2, 1, 3]]


@pytest.mark.parametrize("padding", ["none", "end", "front", "anywhere"])
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (3, 0), (2, 300)])  # 300: a sort that is not stable would show
def test_compaction_and_selection_equal_deletion_in_a_loop(shape, padding):
    generator = torch.Generator().manual_seed(shape[0] * 100 + shape[1])
    for probability in (0.0, 0.5, 0.8, 1.0):
        events = random_events(*shape, 6, generator, padding)
        keep_mask = torch.rand(shape, generator=generator) < probability
        copies = [x.clone() for x in (*events, keep_mask)]
        rebuilt = compact(*events, keep_mask)
        assert rows_of(rebuilt) == delete_by_loop(*events, keep_mask)
        assert torch.equal(rebuilt.order.sort(dim=1).values, torch.arange(shape[1]).expand(shape))
        assert torch.equal(rebuilt.times, events[0].gather(1, rebuilt.order))
        selected, factors = select(*events, keep_mask.double())
        assert rows_of(selected) == rows_of(rebuilt) and (factors[selected.mask] == 1).all()
        assert all(torch.equal(x, copy) for x, copy in zip((*events, keep_mask), copies, strict=True))


def test_gradients_of_select_reach_kept_events_only():
    times, marks, mask = random_events(3, 7, 6, torch.Generator().manual_seed(2), "anywhere")
    times = times + 1  # the gradient with respect to keep is the time: never 0
    keep = (torch.rand(3, 7, generator=torch.Generator().manual_seed(3)) < 0.5).double().requires_grad_()
    rebuilt, factors = select(times, marks, mask, keep)
    (by_time,) = torch.autograd.grad(rebuilt.times[rebuilt.mask].sum(), keep, retain_graph=True)
    (by_mark,) = torch.autograd.grad(factors[rebuilt.mask].sum(), keep)
    kept = (keep > 0.5) & mask
    assert torch.equal(by_time, torch.where(kept, times, torch.zeros_like(times)))
    assert torch.equal(by_mark, kept.double())


def test_events_pulled_up_to_the_future_keep_their_order():
    generator = torch.Generator().manual_seed(4)
    times, marks, mask = random_events(3, 300, 6, generator, "anywhere")
    keep_mask = torch.rand(3, 290, generator=generator) < torch.tensor([[0.2], [0.5], [0.0]])
    pulled = pull_up(times, marks, mask, keep_mask)
    everything = torch.cat([keep_mask, torch.ones(3, 10, dtype=torch.bool)], dim=1)
    rows = [list(zip(t[m].tolist(), k[m].tolist(), strict=True)) for t, k, m in zip(*pulled, strict=True)]
    assert rows == [[event[1:] for event in row] for row in delete_by_loop(times, marks, mask, everything)]
    assert pulled[0].shape[1] == int((keep_mask & mask[:, :290]).sum(1).max()) + 10
    none = pull_up(times[:0], marks[:0], mask[:0], keep_mask[:0])
    assert [x.shape for x in none] == [(0, 10)] * 3
