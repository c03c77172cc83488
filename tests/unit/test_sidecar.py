"""Timing sidecars of another form, and names that lead nowhere: one line each, whoever reads them."""

import pytest
import test_source

from causal_priors.cli import main
from causal_priors.config import load_scale, scale_file
from causal_priors.errors import UserError
from causal_priors.report.comparison import compare
from causal_priors.report.data import _step_time
from causal_priors.report.sidecar import read_timing
from causal_priors.report.timings import timing_table
from causal_priors.report.versus import _pace

WRONG = {
    "[]": "holds no mapping",
    "null": "holds no mapping",
    '{"seconds_per_step": "fast"}': "seconds_per_step = 'fast': is no time",
    '{"seconds_per_step": []}': r"seconds_per_step = \[\]: is no time",
    '{"seconds_per_step": -1}': "seconds_per_step = -1: is no time",
    '{"cpu_seconds": {"startup": true}}': "cpu_seconds.startup = True: is no time",
}
wrong = pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=range(len(WRONG)))


@wrong
def test_a_sidecar_of_another_form_is_refused(text, message, tmp_path):
    path = tmp_path / "timing.json"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"timing.json: (is no timing sidecar: it )?{message}; remove the file"):
        read_timing(path)


def test_times_by_part_are_summed_and_what_is_not_read_may_be_anything(tmp_path):
    path = tmp_path / "timing.json"
    path.write_text('{"cpu_seconds": {"startup": 1, "fold": 2.5}, "gpu": "a name", "seconds_per_step": null}')
    assert read_timing(path) == {"cpu_seconds": 3.5, "startup_cpu_seconds": 1.0}
    assert read_timing(tmp_path / "none.json") == {}


@wrong
def test_every_reader_says_so_in_one_line(text, message, tmp_path):
    run = tmp_path / "runs/S-rope-L512-s0"
    run.mkdir(parents=True)
    (run / "timing.json").write_text(text)
    benchmark = tmp_path / "benchmarks/train/S-rope-L512-s0.tsv"
    benchmark.parent.mkdir(parents=True)
    benchmark.write_text("s\th:m:s\tmax_rss\tcpu_time\n10\t-\t300\t1\n")
    paper = load_scale(scale_file("paper"))
    summary = test_source.summary()
    for read in (
        lambda: timing_table(tmp_path),
        lambda: _step_time(run, {}, paper),
        lambda: _pace(run),
        lambda: compare(test_source.records(), summary, test_source.PUBLISHED, paper, run.parent),
    ):
        with pytest.raises(UserError, match=message):
            read()


@pytest.mark.parametrize("text", ["", "s\tmax_rss\n", "s\tmax_rss\tcpu_time\n", "s\tmax_rss\tcpu_time\na\tb\tc\n"])
def test_a_damaged_benchmark_file_is_refused(text, tmp_path):
    path = tmp_path / "benchmarks/train/a.tsv"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UserError, match=r"a.tsv: is no benchmark file"):
        timing_table(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "a" * 300, "nano"], "is neither a finished run nor a finished study"),
        (["export", "a" * 300, "--out", "out"], "is no finished run of scale micro"),
        (["status", "--results", "/etc/passwd"], "--results = '/etc/passwd': is a file, not a folder"),
        (["seal", "--check", "--date", "nope"], "--date = 'nope': is not a date"),
    ],
)
def test_what_leads_nowhere_is_told_in_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


def test_a_number_of_processes_below_zero_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["index", "--texts", "texts", "--out", "out", "--threads", "-3"])
    assert stopped.value.code == 2
    assert "--threads: -3 is below zero" in capsys.readouterr().err
