"""Progress: a bar on a terminal, one plain line per interval otherwise."""

import io

import pytest

from causal_priors.progress import Progress, note, read_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_log_gets_one_line_per_interval_and_one_at_the_end():
    stream, clock = io.StringIO(), Clock()
    with Progress(200, "S-rope-L64-s0", interval=10, stream=stream, clock=clock) as progress:
        for step in range(200):
            clock.now += 0.25
            progress.update(1, tokens=1024, loss=5.0 - step / 100)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "S-rope-L64-s0: step 20/200 (10%), loss 4.81, 4,096 tokens/s, 0:00:45 left"
    assert lines[1] == "S-rope-L64-s0: step 60/200 (30%), loss 4.41, 4,096 tokens/s, 0:00:35 left"
    assert lines[-1] == "S-rope-L64-s0: step 200/200 (100%), loss 3.01, 4,096 tokens/s"
    assert len(lines) == 1 + 4 + 1
    assert "\r" not in stream.getvalue()


def test_work_done_before_does_not_count_for_the_rate():
    clock = Clock()
    progress = Progress(100, "run", done=90, stream=io.StringIO(), clock=clock)
    progress.update(5)
    assert progress.line(clock.now + 10) == "run: step 95/100 (95%), 0.5 step/s, 0:00:10 left"


def test_without_a_total_there_is_neither_share_nor_time_left():
    clock = Clock()
    progress = Progress(None, "corpus", "document", stream=io.StringIO(), clock=clock)
    progress.update(5000)
    assert progress.line(clock.now + 10) == "corpus: document 5,000, 500 document/s"
    assert Progress(0, "none", stream=io.StringIO(), clock=clock).line(clock.now) == "none: step 0"


def test_bytes_are_told_as_megabytes_a_second_and_what_was_found_finished_is_no_speed():
    clock = Clock()
    progress = Progress(200_000_000, "shards", "byte", stream=io.StringIO(), clock=clock)
    progress.found(60_000_000)
    progress.update(40_000_000, tokens=10_000_000)
    line = progress.line(clock.now + 10)
    assert line == "shards: byte 100,000,000/200,000,000 (50%), 4.0 MB/s, 1,000,000 tokens/s, 0:00:25 left"
    assert read_line(line).seconds_left == 25
    progress = Progress(10_000_000, "corpus", "byte", stream=io.StringIO(), clock=clock)
    progress.update(5_000_000)
    assert progress.line(clock.now + 1) == "corpus: byte 5,000,000/10,000,000 (50%), 5.0 MB/s, 0:00:01 left"


def test_a_terminal_gets_one_line_redrawn():
    stream, clock = Terminal(), Clock()
    with Progress(10, "run", stream=stream, clock=clock) as progress:
        for _ in range(10):
            clock.now += 1
            progress.update()
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text.count("\r[") == 11
    assert f"[{'#' * 12}{' ' * 12}] run: step 5/10" in text
    assert f"[{'#' * 24}] run: step 10/10" in text


@pytest.mark.parametrize(("stream", "wanted"), [(Terminal(), "\n"), (io.StringIO(), "")])
def test_an_exception_leaves_the_cursor_at_a_fresh_line(stream, wanted):
    with pytest.raises(ValueError, match="x"), Progress(10, "run", stream=stream, clock=Clock()):
        raise ValueError("x")
    assert stream.getvalue()[-1:] == wanted


def test_a_note_is_one_line(capsys):
    note("two files are left out")
    assert capsys.readouterr().err == "two files are left out\n"


def test_a_line_is_read_as_it_was_written():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(15_258, "S-log-margin-t050-L512-s0", done=1000, stream=stream, clock=clock)
    progress.update(2000, tokens=2000 * 32_768, loss=4.25)
    seen = read_line(progress.line(clock.now + 4000))
    assert (seen.label, seen.done, seen.total) == ("S-log-margin-t050-L512-s0", 3000, 15_258)
    assert seen.seconds_left == (15_258 - 3000) * 2
    assert seen.rest == "loss 4.25, 16,384 tokens/s"
    progress.update(12_258)
    assert read_line(progress.line(clock.now + 4000)).seconds_left is None


@pytest.mark.parametrize(
    "line", ["", "error: a: b", "corpus: document 5,000, 500 document/s", "x: continues after step 3 of 9"]
)
def test_other_lines_are_no_progress(line):
    assert read_line(line) is None
