"""Progress of a long command."""

from __future__ import annotations

import io

from trainbudget.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_live_line_that_is_taken_away():
    stream, times = Terminal(), iter([10.0, 12.4])
    say = Progress(stream, now=lambda: next(times))
    say("reading the model")
    say("tracing one step")
    say.done()
    assert stream.getvalue() == "\r\033[Kreading the model ... (1, 0 s)\r\033[Ktracing one step ... (2, 2 s)\r\033[K"


def test_a_log_gets_a_plain_line_every_few_seconds_and_none_from_a_quick_command():
    stream, times = io.StringIO(), iter([0.0, 4.0, 6.0, 7.0, 12.0])
    say = Progress(stream, now=lambda: next(times))
    for text in "abcde":
        say(text)
    say.done()
    assert stream.getvalue() == "trainbudget plan: c ... (3, 6 s)\ntrainbudget plan: e ... (5, 12 s)\n"
