"""A keep mask -> the rebuilt sequence, against deletion written as a loop."""

import pytest
import torch

from ehd_hf.models.rebuild import compact, pull_up, select
from helpers import random_events


def delete_by_loop(times, marks, mask, keep_mask):
    """What is left of each row: a list of (position, time, mark), in order."""
    return [
        [
            (i, times[row, i].item(), marks[row, i].item())
            for i in range(times.shape[1])
            if mask[row, i] and keep_mask[row, i]
        ]
        for row in range(len(times))
    ]


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
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (5, 2), (2, 31)])
def test_compaction_equals_deletion_in_a_loop(shape, padding):
    generator = torch.Generator().manual_seed(shape[0] * 100 + shape[1])
    for probability in (0.0, 0.2, 0.5, 0.8, 1.0):
        times, marks, mask = random_events(*shape, 6, generator, padding)
        keep_mask = torch.rand(shape, generator=generator) < probability
        rebuilt = compact(times, marks, mask, keep_mask)
        assert rows_of(rebuilt) == delete_by_loop(times, marks, mask, keep_mask)
        assert torch.equal(rebuilt.order.sort(dim=1).values, torch.arange(shape[1]).expand(shape))
        assert torch.equal(rebuilt.times, times.gather(1, rebuilt.order))


def test_deleting_nothing_and_deleting_everything():
    times, marks, mask = random_events(3, 7, 6, torch.Generator().manual_seed(0), "none")
    whole = compact(times, marks, mask, torch.ones_like(mask))
    assert torch.equal(whole.times, times) and torch.equal(whole.marks, marks) and whole.mask.all()
    assert torch.equal(whole.order, torch.arange(7).expand(3, 7))
    assert not compact(times, marks, mask, torch.zeros_like(mask)).mask.any()
    empty = compact(times[:, :0], marks[:, :0], mask[:, :0], mask[:, :0])
    assert empty.times.shape == empty.order.shape == (3, 0)


def test_events_at_the_same_time_keep_their_order():
    times = torch.zeros(1, 40)
    marks = torch.arange(40)[None]
    keep_mask = torch.arange(40)[None] % 3 != 0
    rebuilt = compact(times, marks, torch.ones_like(keep_mask), keep_mask)
    assert rebuilt.marks[rebuilt.mask].tolist() == [i for i in range(40) if i % 3]


def test_compaction_leaves_its_arguments_alone():
    arguments = (*random_events(3, 7, 6, torch.Generator().manual_seed(0)), torch.rand(3, 7) > 0.5)
    copies = [argument.clone() for argument in arguments]
    compact(*arguments)
    assert all(torch.equal(argument, copy) for argument, copy in zip(arguments, copies, strict=True))


@pytest.mark.parametrize("padding", ["none", "end", "front", "anywhere"])
def test_select_gives_the_compacted_values_with_factors_of_one(padding):
    generator = torch.Generator().manual_seed(1)
    times, marks, mask = random_events(3, 7, 6, generator, padding)
    keep = (torch.rand(3, 7, generator=generator) < 0.6).double()
    rebuilt, factors = select(times, marks, mask, keep)
    reference = compact(times, marks, mask, keep > 0.5)
    assert torch.equal(rebuilt.mask, reference.mask) and torch.equal(rebuilt.order, reference.order)
    for name in ("times", "marks"):
        assert torch.equal(getattr(rebuilt, name)[rebuilt.mask], getattr(reference, name)[rebuilt.mask])
    assert (factors[rebuilt.mask] == 1).all()


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
    # Long enough for a sort that is not stable to show it.
    generator = torch.Generator().manual_seed(4)
    times, marks, mask = random_events(3, 300, 6, generator, "anywhere")
    keep_mask = torch.rand(3, 290, generator=generator) < torch.tensor([[0.2], [0.5], [0.0]])
    pulled = pull_up(times, marks, mask, keep_mask)
    everything = torch.cat([keep_mask, torch.ones(3, 10, dtype=torch.bool)], dim=1)
    rows = [
        list(zip(row_times[row].tolist(), row_marks[row].tolist(), strict=True))
        for row_times, row_marks, row in zip(*pulled, strict=True)
    ]
    deleted = [[event[1:] for event in row] for row in delete_by_loop(times, marks, mask, everything)]
    assert rows == deleted
    assert pulled[0].shape[1] == int((keep_mask & mask[:, :290]).sum(1).max()) + 10


def test_no_windows_are_pulled_up_to_no_windows():
    times, marks, mask = (x[:0] for x in random_events(3, 7, 6, torch.Generator().manual_seed(0)))
    assert [x.shape for x in pull_up(times, marks, mask, mask[:, :5])] == [(0, 2)] * 3
