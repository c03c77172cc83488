"""The study as jobs of a real SLURM, whose nodes fail: the same bytes as on one machine.

Each wait has a time limit, since Snakemake's SLURM plugin waits forever for a job of which it has lost sight.
"""

import subprocess
import tempfile
from pathlib import Path

import pytest
from checkout import Checkout
from slurm import Cluster, missing, until

from causal_priors.config import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.workflow]

# Beside the environment, not in it: the plugin asks SLURM for its settings whenever Snakemake starts.
PLUGIN = ROOT / ".venv" / "slurm"
# What the profile has, for nodes of two cores and for jobs of seconds.
SMALL = ["--cores", "2", "--default-resources", "runtime=60", "mem_mb=500", "--latency-wait", "20"]
SMALL += ["--slurm-init-seconds-before-status-checks", "2"]
GROUPS = ["train", "evaluate", "intervene", "control"]
TABLES = ["verdicts", "summary", "source", "exploratory", "figures", "page", "crate"]
STUDY_SECONDS = 3600
NAME = "S-log-L16-s0"
ONE = f"results/nano/runs/{NAME}/evaluation.parquet"
# About two minutes of training, so that one job's shortest time limit, a minute, is not enough.
STEPS = 30_000


@pytest.fixture
def cluster():
    """A SLURM of two nodes, gone afterwards with all that ran on it."""
    if reason := missing():
        pytest.skip(reason)
    if not PLUGIN.is_dir():
        pytest.skip("Snakemake's executor plugin for SLURM is not installed (make .venv/slurm)")
    # Not in pytest's folder: the name of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="causal-priors-slurm-") as folder, Cluster(Path(folder)) as made:
        yield made


@pytest.fixture
def checkout(tmp_path):
    """A copy of the repository; whatever was started in it is dead afterwards."""
    found = Copy(tmp_path / "copy")
    yield found
    for process in found.started:
        found.kill(process)


class Copy(Checkout):
    """A copy in which Snakemake runs here or through a cluster."""

    def start(self, *arguments: str, cluster: Cluster | None = None) -> subprocess.Popen:
        if cluster is None:
            return self.launch([*arguments, "--cores", "all"])
        profile = ["--profile", "workflow/profiles/slurm", *SMALL]
        return self.launch([*arguments, *profile], cluster.environment, [PLUGIN])

    def finish(self, process: subprocess.Popen, seconds: float = STUDY_SECONDS) -> None:
        assert process.wait(seconds) == 0, self.said(process)[-5000:]

    def evaluated(self) -> int:
        return len(list((self.folder / "results/nano/runs").glob("*/evaluation.parquet")))


def running(cluster, but=""):
    """A job at work that is a group of runs, and not the one with this number; None if there is none."""
    found = [job for job in cluster.jobs() if job["state"] == "RUNNING" and job["comment"].startswith("rule_run")]
    return next((job for job in found if job["id"] != but), None)


def job_of(cluster, number):
    return next(job for job in cluster.jobs() if job["id"] == number)


def test_the_nano_study_ends_in_the_same_bytes_after_a_power_cut_and_a_requeue(cluster, checkout, tmp_path):
    here = Copy(tmp_path / "here")
    here.finish(here.start())

    groups = [*(f"{rule}=run" for rule in GROUPS), *(f"{rule}=tables" for rule in TABLES)]
    limits = [f"{rule}:runtime=5" for rule in GROUPS]
    driver = checkout.start(
        *("--groups", *groups, "--group-components", "run=8", "--set-resources", *limits), cluster=cluster
    )

    def wait(seen, what):
        until(lambda: seen() or driver.poll() is not None, what, lambda: checkout.said(driver), STUDY_SECONDS)
        assert driver.poll() is None, checkout.said(driver)

    wait(lambda: checkout.evaluated() >= 2 and running(cluster), "the first runs are done")
    struck = running(cluster)
    cluster.cut(struck["node"])
    wait(lambda: job_of(cluster, struck["id"])["restarts"] == "1", "SLURM puts the job back into its queue")
    cluster.boot(struck["node"])
    wait(lambda: job_of(cluster, struck["id"])["state"] == "RUNNING", "the job runs again")

    wait(lambda: checkout.evaluated() >= 8 and running(cluster, but=struck["id"]), "more runs are done")
    taken = running(cluster, but=struck["id"])
    cluster.call("scontrol", "requeue", taken["id"])
    wait(lambda: job_of(cluster, taken["id"])["restarts"] == "1", "the other job is back in the queue")

    checkout.finish(driver)
    jobs = cluster.jobs()
    assert {job["state"] for job in jobs} == {"COMPLETED"}
    assert sorted(job["id"] for job in jobs if job["restarts"] != "0") == sorted([struck["id"], taken["id"]])
    # What runs models asks for a GPU; the rest does not.
    assert {job["gpus"] for job in jobs if job["comment"].startswith("rule_run")} == {"gres:gpu:1"}
    assert {job["gpus"] for job in jobs if not job["comment"].startswith("rule_run")} == {"N/A"}

    expected, found = here.digests(), checkout.digests()
    assert {"verdicts.json", "verdicts.parquet", "report.html", f"runs/{NAME}/model.safetensors"} <= set(found)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if expected[name] != found[name]] == []


def test_time_limits_and_the_death_of_the_driver_cost_no_step(cluster, checkout, tmp_path):
    here = Copy(tmp_path / "here")
    for copy in (here, checkout):
        scale = copy.folder / "workflow/config/scales/nano.yaml"
        text = scale.read_text().replace("train_length: 16, steps: 5,", f"train_length: 16, steps: {STEPS},", 1)
        scale.write_text(text.replace("max_corpus_repeats: 4.0", "max_corpus_repeats: 10000.0"))
    here.finish(here.start(ONE), 900)

    def said():
        return "\n".join([*map(checkout.said, checkout.started), checkout.logged(NAME)])

    limits = ["--set-resources", "train:runtime=1", "train:gpu=0", "--retries", "20"]
    first = checkout.start(ONE, *limits, cluster=cluster)
    until(lambda: "step" in checkout.logged(NAME), "training is at work", said, 300)
    (early,) = [job["id"] for job in cluster.jobs() if job["comment"].startswith("rule_train")]
    checkout.kill(first)

    # The job goes on; the next driver, which knows nothing of it, submits another, which waits for it.
    second = checkout.start(ONE, *limits, cluster=cluster)
    until(lambda: "waiting up to 10 minutes" in checkout.logged(NAME), "the second job waits", said, 300)
    assert job_of(cluster, early)["state"] == "RUNNING"
    until(lambda: "continues after step" in checkout.logged(NAME), "the second job takes over", said, 300)
    assert job_of(cluster, early)["state"] in ("TIMEOUT", "COMPLETING")
    checkout.finish(second, 900)

    trained = [job for job in cluster.jobs() if job["comment"].startswith("rule_train")]
    assert len(trained) >= 3
    assert [job["state"] for job in trained].count("COMPLETED") == 1
    assert {job["state"] for job in trained} == {"TIMEOUT", "COMPLETED"}
    assert {job["gpus"] for job in trained} == {"N/A"}
    assert checkout.digests() == here.digests()
