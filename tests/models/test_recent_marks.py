"""Counts of recent marks: against a loop that says what they are, and against counts worked by hand."""

import torch

from ehd_hf.models import recent_marks
from ehd_hf.models.recent_marks import RecentMarks, gates_of


def counts_by_loop(marks, kept, decay, num_marks):
    """Before each event and after all: every kept event adds one and makes the others older."""
    count, rows = torch.zeros(num_marks, dtype=torch.float64), [torch.zeros(num_marks, dtype=torch.float64)]
    for mark, keep in zip(marks.tolist(), kept.tolist(), strict=True):
        if keep:
            count = decay * count
            count[mark] += 1
        rows.append(count.clone())
    return torch.stack(rows)


def test_three_events_by_hand():
    recent = RecentMarks(num_marks=2, state_size=1).double()
    with torch.no_grad():
        recent.decay_logits.copy_(torch.tensor([0.5, 0.25]).logit())
    counts = recent(torch.tensor([[0, 1, 0]]), torch.ones(1, 3, dtype=torch.float64), None).view(4, 2, 2)
    expected = [[[0, 0], [0, 0]], [[1, 0], [1, 0]], [[0.5, 1], [0.25, 1]], [[1.25, 0.5], [1.0625, 0.25]]]
    torch.testing.assert_close(counts, torch.tensor(expected, dtype=torch.float64))


def test_counts_equal_a_loop_over_kept_events_of_any_length():
    generator = torch.Generator().manual_seed(0)
    recent = RecentMarks(num_marks=4, state_size=3).double()
    for length in (1, recent_marks._BLOCK, recent_marks._BLOCK + 1, 3 * recent_marks._BLOCK - 5):
        marks = torch.randint(0, 4, (2, length), generator=generator)
        mask = torch.rand(2, length, generator=generator) < 0.9
        keep = (torch.rand(2, length // 2, generator=generator) < 0.5).double()
        gates = gates_of(keep, mask, torch.float64)
        counts = recent(marks, gates, None).detach().view(2, length + 1, 2, 4)
        for row in range(2):
            for which, decay in enumerate(torch.sigmoid(recent.decay_logits.detach()).tolist()):
                expected = counts_by_loop(marks[row], gates[row] > 0, decay, 4)
                torch.testing.assert_close(counts[row, :, which], expected, rtol=1e-10, atol=1e-10)


def test_probabilities_sum_to_one_and_without_history_the_counts_say_nothing():
    recent = RecentMarks(num_marks=5, state_size=3).double()
    states = torch.randn(7, 3, dtype=torch.float64)
    own = torch.randn(7, 5, dtype=torch.float64).log_softmax(-1)
    counts = torch.rand(7, 10, dtype=torch.float64)
    mixed = recent.log_probs(states, own, counts, None)
    torch.testing.assert_close(mixed.exp().sum(-1), torch.ones(7, dtype=torch.float64))
    marks = torch.arange(7) % 5
    picked = recent.log_probs(states, own.gather(-1, marks[:, None])[:, 0], counts, marks)
    torch.testing.assert_close(picked, mixed.gather(-1, marks[:, None])[:, 0])
    nothing = recent.log_probs(states, own, torch.zeros_like(counts), None).exp()
    weight = recent.mixing(states).softmax(-1)[:, :1]
    torch.testing.assert_close(nothing, weight * own.exp() + (1 - weight) / 5)
