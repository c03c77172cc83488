"""Benchmarks: ratios within one run, on the machine at hand."""

import argparse

from causal_priors.cli.options import Add


def register(add: Add) -> None:
    """Declare the commands."""
    sub = add("bench", _bench, "measure speed and memory, as ratios within one run")
    sub.add_argument("what", choices=["attention", "fold", "gpu", "train", "transport"])
    sub.add_argument("rest", nargs=argparse.REMAINDER, help="options of the benchmark")


def _bench(options: argparse.Namespace) -> None:
    from importlib import import_module

    import_module(f"causal_priors.bench.{options.what}").main(options.rest)
