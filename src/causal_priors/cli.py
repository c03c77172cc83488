"""`python -m causal_priors STAGE`: one subcommand per stage of the pipeline.

Exit codes: 0 done, 2 a mistake or a fault that one line on stderr explains, 128 + n stopped by signal n (work saved).
Each stage is imported only when it is called, so `--help` and the stages without tensors never import torch.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from causal_priors.errors import UserError

Command = Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    options = parser().parse_args(arguments)
    command: Command = options.command
    try:
        command(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of a pipe has seen enough (`... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(prog="python -m causal_priors", description=__doc__.splitlines()[0] if __doc__ else "")
    commands = top.add_subparsers(title="stages", metavar="STAGE", required=True)

    def add(name: str, command: Command, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text, description=help_text)
        sub.set_defaults(command=command)
        return sub

    def add_for_run(name: str, command: Command, help_text: str) -> argparse.ArgumentParser:
        sub = add(name, command, help_text)
        sub.add_argument("run", help="e.g. S-rope-L64-s0")
        _scale(sub)
        sub.add_argument("--shards", type=Path, required=True, help="folder of the tokenised corpus")
        return sub

    sub = add("corpus", _corpus, "fetch the default corpus, or read a folder of texts, into one table of documents")
    sub.add_argument("--corpus", default="default", help="`default` or a folder of .txt, .jsonl(.gz) or .parquet")
    sub.add_argument("--text-column", default="text", help="column or field that holds the text")
    sub.add_argument("--archives", default="", help="folder that holds the default corpus's archives (no network)")
    sub.add_argument("--cache", type=Path, required=True, help="folder for downloads")
    sub.add_argument("--out", type=Path, required=True)

    sub = add("tokenizer", _tokenizer, "train the byte-level BPE on the training split, or fetch GPT-2's")
    _scale(sub)
    sub.add_argument("--corpus", type=Path, required=True, help="the table of documents")
    sub.add_argument("--cache", type=Path, required=True, help="folder for downloads")
    sub.add_argument("--out", type=Path, required=True)

    sub = add("shards", _shards, "tokenise the corpus into training and held-out shards")
    _scale(sub)
    sub.add_argument("--corpus", type=Path, required=True, help="the table of documents")
    sub.add_argument("--tokenizer", type=Path, required=True)
    sub.add_argument("--allow-repeats", action="store_true", help="accept a corpus that training repeats often")
    sub.add_argument("--packed", action="store_true", help="allow evaluation blocks across document borders")
    sub.add_argument("--out", type=Path, required=True)

    sub = add("margins", _margins, "choose the margins of experiment 0005 from theory")
    _scale(sub)
    sub.add_argument("--out", type=Path, required=True)

    sub = add_for_run("train", _train, "train one registered run, or continue it")
    sub.add_argument("--margins", type=Path, help="the margins file, for the arms that train with one")
    sub.add_argument("--out", type=Path, required=True, help="folder of the run")

    sub = add_for_run("evaluate", _evaluate, "evaluate one checkpoint at L, 2L, 4L and 8L")
    sub.add_argument("--folder", type=Path, required=True, help="folder of the run")
    sub.add_argument("--packed", action="store_true", help="allow evaluation blocks across document borders")
    sub.add_argument("--out", type=Path, required=True)

    sub = add_for_run("intervene", _intervene, "change a checkpoint's log-prior beyond L; measure before and after")
    sub.add_argument("edit", choices=["cap", "repair"])
    sub.add_argument("--folder", type=Path, required=True, help="folder of the run")
    sub.add_argument("--packed", action="store_true", help="allow evaluation blocks across document borders")
    sub.add_argument("--out", type=Path, required=True)

    sub = add("score", _score, "score the registered tests")
    _study(sub)
    sub.add_argument("--experiment", help="score one experiment, e.g. 0003")
    sub.add_argument("--out", type=Path, required=True, help="folder for verdicts.{json,parquet,csv,md}")

    sub = add("verdicts", _verdicts, "print the last verdict table")
    sub.add_argument("--scale", default="micro", help="scale whose table to print")
    sub.add_argument("--folder", type=Path, help="folder that holds verdicts.json (default: results/{scale})")

    sub = add("summary", _summary, "write tables of loss and far mass per run and arm")
    sub.add_argument("evaluations", type=Path, nargs="+")
    sub.add_argument("--csv", type=Path, required=True)
    sub.add_argument("--md", type=Path, required=True)

    sub = add("seal", _seal, "seal new protocols, or check the seals")
    sub.add_argument("--preregistration", type=Path, default=Path("preregistration"))
    sub.add_argument("--check", action="store_true", help="only check that nothing sealed has changed")
    sub.add_argument("--date", help="date of the seal, YYYY-MM-DD")

    sub = add("bench", _bench, "measure speed and memory; ratios within one run")
    sub.add_argument("what", choices=["transport"])
    sub.add_argument("rest", nargs=argparse.REMAINDER, help="options of the benchmark")
    return top


def _scale(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--scale", default="micro", help="nano, micro, mini or paper")


def _study(sub: argparse.ArgumentParser) -> None:
    _scale(sub)
    sub.add_argument("--results", default="results", help="folder of generated files")
    sub.add_argument("--preregistration", default="preregistration", help="folder of the sealed protocols")
