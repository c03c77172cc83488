"""Commands that only look: what is running, what a study costs, what was claimed and what came of it."""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from causal_priors.cli.options import Add, positive, results_option, scale_option, study_of, study_options, whole


def register(add: Add) -> None:
    """Declare the commands."""
    sub = add("status", _status, "print the run matrix: what is done, running, stopped, failed and waiting")
    study_options(sub)
    results_option(sub)
    sub.add_argument("--watch", action="store_true", help="print it again until all is done, or until Ctrl-C")
    sub.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="pause of --watch (default: 5)")

    sub = add("plan", _plan, "print what a study costs: runs, tokens, FLOPs, disk and hours, before anything is spent")
    study_options(sub)
    results_option(sub)
    speed = sub.add_mutually_exclusive_group()
    speed.add_argument("--rate", type=positive, metavar="TOKENS_PER_S", help="speed of training rope at size S")
    speed.add_argument("--flops", type=positive, metavar="RATE", help="sustained FLOP/s of one device, as 2e14")
    text = "numbers of devices to play the study through on, one job a device at a time (default: 1 8 64)"
    sub.add_argument("--devices", type=whole, nargs="+", default=[1, 8, 64], metavar="N", help=text)

    sub = add("show", _show, "print one experiment: question, runs, tests, thresholds, seal and verdicts")
    sub.add_argument("experiment", help="id of a registered experiment, e.g. 0003")
    study_options(sub)
    results_option(sub)

    sub = add("explain", _explain, "say in plain words what a test claims, on which windows, and why it holds or fails")
    sub.add_argument("test", help="id of a registered test, e.g. 0003-a")
    study_options(sub)
    results_option(sub)

    sub = add(
        "audit",
        _audit,
        "recheck a study from its files: digests, seals, verdicts; exit 0 sound, 1 broken, 2 cannot tell",
    )
    sub.add_argument("--scale", help="scale of the study (default: the name of the folder, or micro)")
    sub.add_argument("--folder", type=Path, help="a study, or its snapshot (default: results/{scale})")
    sub.add_argument("--preregistration", default="preregistration", help="folder of the sealed protocols")
    sub.add_argument("--texts", type=Path, help="the corpus, where it was one of your own")
    sub.add_argument("--text-column", default="text", help="column or field that holds the text")
    sub.add_argument("--json", action="store_true", help="print the report as JSON")

    sub = add("compare", _compare, "set two runs, or two scales, side by side")
    sub.add_argument("a", metavar="A", help="a finished run, a scale, or the folder of either")
    sub.add_argument("b", metavar="B", help="what it is compared with")
    scale_option(sub)
    results_option(sub)


def _status(options: argparse.Namespace) -> None:
    from causal_priors.report.status import status_text

    study = study_of(options)
    # On a terminal the last picture is cleared, and must fit; in a file each stands under the other.
    redrawn = options.watch and sys.stdout.isatty()
    while True:
        text, finished = status_text(study, shutil.get_terminal_size().lines if redrawn else None)
        sys.stdout.write(f"\x1b[H\x1b[2J{text}" if redrawn else text)
        sys.stdout.flush()
        if finished or not options.watch:
            return
        time.sleep(max(0.5, options.every))


def _audit(options: argparse.Namespace) -> None:
    from causal_priors.audit.stage import audit
    from causal_priors.config import load_scale, scale_file

    path = scale_file(options.scale or (options.folder.resolve().name if options.folder else "micro"))
    scale = load_scale(path)
    folder = options.folder or Path("results", scale.name)
    report = audit(folder, scale, options.preregistration, options.texts, options.text_column, path)
    if options.json:
        json.dump(report.as_data(), sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        print(report.text(), end="")
    if report.outcome:
        raise SystemExit(report.outcome)


def _plan(options: argparse.Namespace) -> None:
    from causal_priors.report.plan import given_speed, measured_speed, plan_text

    study = study_of(options)
    given = options.rate or options.flops
    speed = given_speed(study, rate=options.rate, flops=options.flops) if given else measured_speed(study)
    print(plan_text(study, speed, options.devices), end="")


def _show(options: argparse.Namespace) -> None:
    from causal_priors.report.jobs import run_jobs
    from causal_priors.report.register import find_experiment, read_records
    from causal_priors.report.show import show_text

    study = study_of(options)
    entry = find_experiment(study.config.preregistration, options.experiment)
    records = read_records(study.folder, entry.protocol.id)
    jobs = dict(run_jobs(study))
    print(show_text(entry.protocol, entry.seal, entry.amendments, study.scale, jobs, records), end="")


def _explain(options: argparse.Namespace) -> None:
    from causal_priors.report.explain import explain_text
    from causal_priors.report.register import find_test, read_records

    study = study_of(options)
    entry, test = find_test(study.config.preregistration, options.test)
    records = {record["test_id"]: record for record in read_records(study.folder, entry.protocol.id)}
    text = explain_text(test, entry.protocol, entry.seal, study.scale, records.get(test.id), entry.ledger)
    print(text, end="")


def _compare(options: argparse.Namespace) -> None:
    from causal_priors.report.versus import compare_text

    print(compare_text(options.a, options.b, options.results, options.scale), end="")
