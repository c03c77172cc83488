"""What `plan` says a study costs: parameters and FLOPs against the real model, hours by hand, nothing spent."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import scale
from torch.utils.flop_counter import FlopCounterMode

from causal_priors.arms import ARMS
from causal_priors.cli import main
from causal_priors.config import ROOT, load_config
from causal_priors.evaluate import measure
from causal_priors.model import Transformer
from causal_priors.report import plan, text_cost
from causal_priors.report.schedule import Course, Job, chains, longest_chain, play
from causal_priors.runs import Run
from causal_priors.scale import Scale, Size
from causal_priors.study import load_study
from causal_priors.yamlfile import load_yaml

CONFIG = ROOT / "workflow" / "config" / "config.yaml"
REGISTER = ["--preregistration", str(ROOT / "preregistration")]


def study(name, results):
    data = {
        **load_yaml(CONFIG),
        "scale": name,
        "results": str(results),
        "preregistration": str(ROOT / "preregistration"),
    }
    load_config(data, CONFIG)
    return load_study(data, CONFIG)


@pytest.mark.parametrize("name", ["nano", "micro", "mini"])
def test_parameters_are_those_of_the_model(name):
    of = scale(name)
    for size in of.sizes.values():
        with torch.device("meta"):
            model = Transformer(size, of.vocabulary, ARMS["nope"], size.train_length, 0)
        assert plan.parameters(size, of) == sum(parameter.numel() for parameter in model.parameters())


def counted(length, call):
    """FLOPs of a forward and a backward pass per token, as torch counts them: matrix products alone."""
    with FlopCounterMode(display=False) as counter:
        call().backward()
    return counter.get_total_flops() / length


def test_training_flops_are_those_that_torch_counts():
    size = Size(64, 3, 4, 8, 1, 1024, 1e-3, 0.1, 0.1)
    of = Scale("x", "test", "bpe", 96, 1024, 8, "float32", 4.0, {"S": size})
    model = Transformer(size, of.vocabulary, ARMS["nope"], 8, 0)
    ids = torch.zeros(16, 8, dtype=torch.int64)
    # Short windows: attention is two percent, norms and biases another two.
    assert plan.training_flops(size, of, 8) == pytest.approx(counted(128, lambda: model(ids, ids).mean()), rel=0.05)
    # What a longer window adds is scores and sums of attention, for which the model may take other ways than these.
    q_HTD, k_HTD, v_HTD = (torch.randn(4, 128, 16, requires_grad=True) for _ in range(3))
    attention = counted(128, lambda: (torch.softmax(q_HTD @ k_HTD.mT, -1) @ v_HTD).sum())
    assert plan.training_flops(size, of, 136) - plan.training_flops(size, of, 8) == 3 * attention


def test_the_costs_written_in_the_scale_files_are_the_same():
    for name in ("mini", "paper"):
        text = (ROOT / f"workflow/config/scales/{name}.yaml").read_text(encoding="utf-8")
        of = scale(name)
        for key, tokens, flops in re.findall(r"([SC]) ([\d,]+) tokens, ([\d.e]+) FLOPs", text):
            size = of.sizes[key]
            assert int(tokens.replace(",", "")) == size.steps * size.tokens_per_step
            # The files count 6 x parameters x tokens; attention comes on top.
            assert 6 * plan.parameters(size, of) * int(tokens.replace(",", "")) == pytest.approx(float(flops), rel=0.03)


def test_hours_follow_from_a_rate_and_from_flops(tmp_path):
    paper = study("paper", tmp_path)
    size = paper.scale.sizes["S"]
    tokens = size.steps * size.tokens_per_step
    flops = tokens * plan.training_flops(size, paper.scale, 512)
    rate = plan.given_speed(paper, rate=100_000.0)
    assert rate.seconds("train", Run("S", "rope", 1, 0), flops) == pytest.approx(tokens / 100_000)
    sustained = plan.given_speed(paper, flops=2e14)
    assert sustained.seconds("train", Run("S", "rope", 1, 0), flops) == pytest.approx(flops / 2e14)
    # The source's step times: 1582 against 257 ms, and 1.54 against .42 s for the slower transport arm.
    assert sustained.seconds("train", Run("S", "alibi-ot", 1, 0), 2e14) == pytest.approx(1582 / 257)
    assert sustained.seconds("train", Run("S", "ot-75", 1, 0), 2e14) == pytest.approx(1.54 / 0.42)
    assert sustained.seconds("train", Run("S", "cable", 1, 0), 2e14) == pytest.approx(1)


def test_every_job_is_counted(tmp_path):
    lines = {line.label: line for line in plan.plan_lines(study("paper", tmp_path), plan.Speed(""))}
    assert {label: line.jobs for label, line in lines.items()} == {
        "train S, L = 512": 47,
        "train C, L = 1,024": 23,
        "train C, L = 2,048": 6,
        "train C, L = 4,096": 6,
        "evaluate": 82,
        "intervene": 30,
        "control": 5,
    }
    assert all(line.seconds is None for line in lines.values())
    assert lines["train S, L = 512"].checkpoint == 4 * lines["train S, L = 512"].parameters


def test_measured_times_are_medians_of_the_runs_themselves(tmp_path):
    nano = study("nano", tmp_path)
    assert plan.measured_speed(nano) is None
    for name, seconds in (
        ("S-rope-L16-s0", 2.0),
        ("S-rope-L16-s1", 4.0),
        ("S-rope-L16-s2", 3.0),
        ("S-fox-L16-s0", 9.0),
    ):
        folder = tmp_path / "nano/runs" / name
        folder.mkdir(parents=True)
        (folder / "timing.json").write_text(json.dumps({"seconds_per_step": seconds}))
        (folder / "evaluation.timing.json").write_text(json.dumps({"cpu_seconds": 7.0}))
    (folder / "timing.json").with_name("cap.timing.json").write_text("torn")
    speed = plan.measured_speed(nano)
    steps = nano.scale.sizes["S"].steps
    assert speed.seconds("train", Run("S", "rope", 1, 0), 0) == 3 * steps
    assert speed.seconds("train", Run("S", "fox", 1, 1), 0) == 9 * steps
    # Of an arm that was not measured: the median over the arms of its size.
    assert speed.seconds("train", Run("S", "cable", 1, 1), 0) == 6 * steps
    assert speed.seconds("evaluate", Run("S", "rope", 1, 0), 0) == 7
    assert speed.seconds("train", Run("C", "rope", 1, 0), 0) is None
    assert "measured in 4 runs" in speed.words


def test_an_evaluation_costs_what_torch_counts(monkeypatch):
    """Matrix products of one evaluation of `nope` at a tiny size; attention, which the fused kernel hides, left out."""
    size = Size(64, 2, 4, 8, 1, 1024, 1e-3, 0.1, 0.1)
    of = Scale("x", "test", "bpe", 512, 64 * 4, 4, "float32", 4.0, {"S": size})
    monkeypatch.setattr(plan, "training_flops", lambda size, scale, length: 6.0 * plan.parameters(size, scale))
    run = Run("S", "nope", 1, 0)
    model = Transformer(size, of.vocabulary, ARMS["nope"], 8, 0).eval().requires_grad_(False)
    blocks = np.zeros((4, 65), dtype=np.int64)
    with FlopCounterMode(display=False) as counter:
        measure(model, blocks, [8, 16, 32, 64], 8)
    attention = sum(
        value
        for name, value in counter.get_flop_counts()["Global"].items()
        if "bmm" in str(name) or "scaled" in str(name)
    )
    job = plan.Passes("evaluate", run, plan.PLAIN)
    assert job.tokens(of) == 4 * 20 * 8
    assert job.flops(of) == pytest.approx(counter.get_total_flops() - attention, rel=0.03)


def test_two_jobs_on_two_devices_and_what_waits_for_them():
    jobs = [Job("a", 3.0), Job("b", 1.0), Job("c", 5.0), Job("after b", 4.0, ("b",)), Job("after c", 2.0, ("c",))]
    assert longest_chain(jobs) == 7
    assert play(jobs, 1) == Course(15.0, 1.0)
    # a from 0 to 3 and b to 1, then c to 6 and after b from 3 to 7, after c from 6 to 8.
    assert play(jobs, 2) == Course(8.0, 15 / 16)
    behind = chains(jobs)
    # c to 5 and b to 1, after b to 5, then after c to 7 and a to 8.
    assert play(jobs, 2, lambda job: -behind(job.name)) == Course(8.0, 15 / 16)
    assert play(jobs, 3, lambda job: -behind(job.name)) == Course(7.0, 15 / 21)
    with pytest.raises(ValueError, match="wait for each other"):
        play([Job("a", 1.0, ("b",)), Job("b", 1.0, ("a",))], 1)


def test_what_is_played_through_is_what_the_pipeline_runs(tmp_path):
    jobs = plan.device_jobs(study("paper", tmp_path), plan.given_speed(study("paper", tmp_path), flops=1e14))
    kinds = Counter(job.name.split()[0] for job in jobs)
    assert kinds == {"train": 82, "evaluate": 82, "intervene": 30, "control": 5}
    listed = pipeline_jobs("paper")
    assert {kind: listed[kind] for kind in kinds} == kinds
    assert all(job.needs == (f"train {job.name.split()[1]}",) for job in jobs if not job.name.startswith("train"))


def pipeline_jobs(name):
    """Jobs by rule that Snakemake plans at a scale."""
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-n",
        "--quiet",
        "rules",
        "--forceall",
        "all",
        "--config",
        f"scale={name}",
    ]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE)}


def test_the_plan_says_what_text_costs(capfd, monkeypatch):
    # At 1 MB/s a core for reading and 0.5 for tokenising, a byte takes three microseconds of a core.
    monkeypatch.setattr(text_cost, "INDEX_RATE", 1e6)
    monkeypatch.setattr(text_cost, "TOKENISE_RATE", 0.5e6)
    assert main(["plan", "--scale", "paper", *REGISTER]) == 0
    found = re.findall(
        r"  ([\d.]+) G tokens: ([\d.]+) GB of text, ([\d.]+) core hours.*, ([\d.]+) GB", capfd.readouterr().out
    )
    (row,) = [tuple(map(float, row)) for row in found]
    assert row == (10, 47, pytest.approx(47e9 * 3e-6 / 3600, rel=0.01), 20)
    assert main(["plan", "--scale", "mini", *REGISTER]) == 0
    text = capfd.readouterr().out
    # 65.5 million training tokens, read four times at most, at 4 bytes.
    assert "  16.4 M tokens: 65.5 MB of text, 0.0546 core hours to check and tokenise, 32.8 MB of shards" in text


def test_the_plan_is_printed_and_nothing_is_written(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--scale", "paper", *REGISTER]) == 0
    text = capfd.readouterr().out
    assert "No speed is known here: add --rate TOKENS_PER_S" in text
    assert main(["plan", "--scale", "paper", *REGISTER, "--flops", "2e14", "--devices", "1", "8"]) == 0
    text = capfd.readouterr().out
    assert max(map(len, text.splitlines())) <= 110
    total = float(next(line for line in text.splitlines() if line.startswith("all ")).split()[-1])
    one, eight = (re.search(rf"^ +{n} +([\d.,]+) +(\d+)% +([\d.]+)$", text, re.MULTILINE) for n in (1, 8))
    assert float(one[1]) == pytest.approx(total, rel=0.01)
    assert one[2] == "100"
    assert float(eight[1]) * 8 * float(eight[2]) / 100 == pytest.approx(total, rel=0.02)
    assert float(eight[3]) <= float(eight[1])
    assert not list(Path(tmp_path).iterdir())
