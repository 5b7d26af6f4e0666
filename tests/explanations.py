"""Explanations made by hand, of any size and with any names, for pictures and pages; and what a picture shows."""

import numpy as np

from ehd_hf.explain.explanation import Event, Explanation, Intensity

MOMENT = np.datetime64("2026-03-01T08:00:00", "ns")
MARKS = ("deploy", "check", "alert", "ticket", "restart")
# What people call their events, and worse.
HOSTILE = (
    "<script>window.stolen = true</script>",
    "</script><script>window.stolen = true</script>",
    "<img src=x onerror='window.stolen = true'>",
    '" onmouseover="window.stolen = true" x=\'',
    "{{ 7 * 7 }} {% raw %} & &amp; \\u003c",
    "$\\frac{1}{2}$ 50% #tag _under^",
    "🚀 déploiement 部署",
    "a very long name " * 40,
    " \t\n ",
)


def made(num_history=7, num_future=4, *, marks=MARKS, moments=False, has_curve=True, has_intensity=True, **changes):
    """Events an hour and a quarter apart, every third of the history distilled; scores rise with time."""
    count = num_history + num_future
    hours = 1.25 * np.arange(count)

    def clock(values):
        return MOMENT + np.rint(3.6e12 * np.asarray(values)).astype("timedelta64[ns]") if moments else values

    times = clock(hours)
    events = [Event(i, times[i] if moments else float(times[i]), marks[i % len(marks)]) for i in range(count)]
    past = tuple(event._replace(score=(i + 1) / 10) for i, event in enumerate(events[:num_history]))
    values = {"dppl_left": -1.5, "dppl_distilled": -0.25, "dppl_empty": -2.0, "share": 0.7, "time_unit": "h"}
    values |= {"dppl_left_time": -1.0, "dppl_left_mark": -0.5, "one_minimal": True}
    if has_curve:
        values["curve"] = tuple(-2.0 * np.sqrt(np.arange(num_history + 1) / num_history))
    if has_intensity:
        last = hours[num_history - 1]
        where = np.concatenate([np.linspace(0, last, 11), np.linspace(last, hours[-1], 9)])
        whole = 2 + np.sin(where)
        named = tuple(dict.fromkeys(event.mark for event in events[num_history:]))[:5]
        values["intensity"] = Intensity(
            times=clock(where),
            whole=whole,
            left=0.5 * whole,
            split=11,
            marks=named,
            whole_by_mark=np.outer(np.arange(1, len(named) + 1), whole) / 10,
            left_by_mark=np.outer(np.arange(1, len(named) + 1), whole) / 20,
        )
    mask = tuple(i % 3 == 2 for i in range(num_history)) if num_history > 2 else (True,) * num_history
    return Explanation(past, tuple(events[num_history:]), mask, **(values | changes))


def drawn(figure, tmp_path):
    """The figure, saved once: labels that do not fit or do not parse fail here."""
    figure.savefig(tmp_path / "figure.png", dpi=40)
    return figure


def legend_of(figure):
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]
