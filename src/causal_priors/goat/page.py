"""The page of experiment 0006: what was predicted and what came out, then one table per test."""

from collections.abc import Mapping, Sequence

import pandas as pd

from causal_priors.goat import LONGER, LONGER_TIMES, MIXTURE, RETRIEVAL, TWO_BACK
from causal_priors.goat.design import GUESS, LEARNT, NEEDLE, PASSKEY, Design
from causal_priors.goat.sink import needed_margin


def page(tables: Mapping[str, pd.DataFrame], design: Design, said: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page as markdown. said: of each arm, how training ended and which window lengths were folded."""
    lines = [
        f"# Experiment 0006 at scale {design.scale.name}: Goat's own tests (exploratory)",
        "",
        "Nothing here enters a registered verdict. Protocol: `preregistration/exploratory/0006-goat`, seal "
        f"`{design.seal[:12]}`. One seed; L = {design.train_length}.",
        "",
    ]
    if design.scale.status == "test":
        lines += ["**At this scale outcomes mean nothing.**", ""]
    for arm, words in said.items():
        if words.get("status") != "finished":
            lines += [f"* {arm}: {words.get('status', 'unknown')}", ""]
    folded = [f"{arm} at {words['folded'].replace(' ', ', ')}" for arm, words in said.items() if words.get("folded")]
    if folded:
        text = (
            "Evaluated with the log-prior folded into query and key, one call without a bias, at the window lengths in"
        )
        lines += [f"{text} tokens where that is faster: {'; '.join(folded)}. Float32; equal up to rounding.", ""]
    lines += ["## Predictions", "", *_markdown(tables["predictions"], ["id", "claim", "outcome", "observed"]), ""]
    lines += ["## Mixture of copies", "", *_prior(tables["prior"], MIXTURE), *_mixture(tables[MIXTURE], design)]
    lines += [*_FURTHER_BACK, *_prior(tables["prior"], TWO_BACK), *_mixture(tables[TWO_BACK], design)]
    lines += [*_trained(design), *_retrieval(tables[RETRIEVAL]), *_reach(tables["reach"])]
    lines += [*_longer(design), *_retrieval(tables[LONGER]), *_sinks(tables["sinks"])]
    return "\n".join(lines)


_FURTHER_BACK = (
    "### After the fact: copies one place further back",
    "",
    "Not registered, and run after the first results were seen. Prediction 0006-2 names the wrong lag: the query that",
    "predicts token t stands at t - 1, so the previous token is its own, at lag 0, and needs no attention. And a symbol",
    "that is copied from the first token this often can be told by counting, so the registered mixture hardly parts the",
    "arms. Here tokens copy the one before the previous (lag 1 from the query) instead, with the same probabilities.",
    "",
)


def _prior(rows: pd.DataFrame, task: str) -> list[str]:
    """What Goat's prior shows after `task`."""
    rows = rows[rows["task"] == task]
    if rows.empty:
        return []
    u, k = (
        [
            part.sort_values("index")["value"].to_numpy()
            for _, part in rows[rows["quantity"] == name].groupby(["layer", "head"])
        ]
        for name in ("prior_key", "prior_lag")
    )
    peaks = [int(head.argmax()) for head in k]
    rise = max(float(head[1] - max(head[0], head[2])) for head in k)
    text = f"Goat's heads: sink part at j = 0 above any other j by up to {max(head[0] - head[1:].max() for head in u):+.2f}"
    return [
        f"{text} nats; relative part",
        f"highest at lags {peaks}, lag 1 above lags 0 and 2 by up to {rise:+.2f} nats.",
        "",
    ]


def _mixture(rows: pd.DataFrame, design: Design) -> list[str]:
    lines: list[str] = []
    if rows.empty:
        return [*lines, "No measurements.", ""]
    one = rows[rows["length"] == design.train_length].iloc[0]
    span = one["uniform"] - one["optimum"]
    knows = [f"{name} {(one['uniform'] - one[key]) / span:.3f}" for name, key in _LESS]
    text = f"Share of the way from a uniform guess ({one['uniform']:.4f} nats) to the Bayes optimum"
    lines += [
        f"{text} ({one['optimum']:.4f} at L) that is closed, by window length. Best possible with {', '.join(knows)}."
    ]
    wide = rows.pivot_table(index="arm", columns="length", values="share", sort=False).map("{:.3f}".format)
    return [*lines, "", *_markdown(wide.reset_index(), ["arm", *wide.columns]), ""]


_LESS = (("the earlier token only", "previous_only"), ("the first token only", "first_only"))


def _trained(design: Design) -> list[str]:
    test = design.retrieval
    hides = f"{test.passkey_windows} with a passkey in training text and {test.needle_windows} with two needles"
    return [
        "## Retrieval beyond L",
        "",
        "Models are co-trained from their initial weights, all within L: each step takes windows of "
        f"{design.train_length} tokens, {test.text_windows} of plain text, {hides}; the loss is the mean over all targets "
        f"plus the mean over answers; {test.steps} steps. Tested in held-out text without digits.",
        "",
        f"A guess among all answers has log-probability {GUESS[PASSKEY]:.2f} (passkey) or {GUESS[NEEDLE]:.2f} (needle). "
        "Who finds a digit but not whose it is gets half of the needles.",
        "",
    ]


def _longer(design: Design) -> list[str]:
    steps = design.retrieval.steps
    return [
        f"### After the fact: trained {LONGER_TIMES} times as long",
        "",
        "Not registered, and run after the first results were seen: an arm that has not learnt a task within L cannot show "
        f"what it loses beyond. The same test with {LONGER_TIMES * steps} steps instead of {steps}.",
        "",
    ]


def _reach(rows: pd.DataFrame) -> list[str]:
    """Distant against near items, with far mass; both tasks of an arm in one row."""
    if rows.empty:
        return []
    lines = [
        "### Distant items and far mass",
        "",
        "Learnt: log-probability of the answer at L above a guess, in nats. Distant: at the longest windows, that of an "
        "item at depth 0 minus that of one at depth 1. Far mass: there, w = L/8.",
        "",
    ]
    table = []
    for (test, arm), part in rows.groupby(["test", "arm"], sort=False):
        by_task = part.set_index("task")
        cells = [f"{by_task.loc[task, key]:+.2f}" for task in by_task.index for key in ("gain", "gap")]
        table.append([f"{arm}, longer" if test == LONGER else arm, *cells, f"{part['far_mass'].mean():.3f}"])
    names = [f"{task} {word}" for task in dict.fromkeys(rows["task"]) for word in ("learnt", "distant")]
    names = ["arm", *names, "far mass"]
    lines += [*_markdown(pd.DataFrame(table, columns=names), names), ""]
    once = rows[rows["test"] == RETRIEVAL]
    said = []
    for task, part in once.groupby("task", sort=False):
        learnt = part[part["gain"] >= LEARNT]
        for name, some in (("all", part), (f"the {len(learnt)} that learnt it by {LEARNT:g} nat or more", learnt)):
            if len(some) >= 3:
                # Pearson's of the ranks is Spearman's.
                said.append(f"{task}, over {name}: {some['far_mass'].rank().corr(some['gap'].rank()):+.2f}")
    return [*lines, f"Spearman's rank correlation over arms of far mass and that difference: {'; '.join(said)}.", ""]


def _retrieval(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return ["No measurements.", ""]
    longest = rows["length"].max()
    lines = ["Greedy decoding gives exactly the answer (share of windows, mean over depths), by window length; at the"]
    lines += [f"last length, {longest} tokens, also by depth (0: the item stands first) and with far mass (w = L/8)."]
    for task, part in rows.groupby("task", sort=False):
        wide = part.pivot_table(index="arm", columns="length", values="correct", sort=False).map("{:.2f}".format)
        far = part[part["length"] == longest]
        deep = far.pivot_table(index="arm", columns="depth", values="correct", sort=False).map("{:.2f}".format)
        deep.columns = [f"depth {depth:g}" for depth in deep.columns]
        mass = far.groupby("arm", sort=False)["far_mass"].mean().map("{:.3f}".format).rename("far mass")
        joined = wide.join(deep).join(mass).reset_index()
        lines += ["", f"**{task}**", "", *_markdown(joined, list(joined.columns))]
    return [*lines, ""]


def _sinks(rows: pd.DataFrame) -> list[str]:
    lines = ["## Sinks", ""]
    if rows.empty:
        return [*lines, "No measurements.", ""]
    shortest, longest = rows["length"].min(), rows["length"].max()
    needed = needed_margin(longest, 0.5) - needed_margin(shortest, 0.5)
    text = (
        f"Attention to key 0 and its margin over the other keys in nats, mean over layers and heads, at {shortest} and"
    )
    lines += [f"{text} {longest} tokens. A sink that keeps its mass needs a margin that grows by {needed:.2f}.", ""]
    mean = rows.groupby(["arm", "length"], sort=False)[["mass", "margin"]].mean()
    table = []
    for arm in dict.fromkeys(rows["arm"]):
        short, long = mean.loc[(arm, shortest)], mean.loc[(arm, longest)]
        highest = rows[(rows["arm"] == arm) & (rows["length"] == longest)]["mass"].max()
        cells = [
            f"{short['mass']:.4f}",
            f"{long['mass']:.4f}",
            f"{highest:.4f}",
            f"{long['margin'] - short['margin']:+.2f}",
        ]
        table.append([arm, *cells])
    names = ["arm", f"mass at {shortest}", f"at {longest}", "its largest head", "growth of the margin"]
    lines += _markdown(pd.DataFrame(table, columns=names), names)
    if slack := list(rows["bound_slack"].dropna()):
        lines += ["", f"Key 0's weight lies inside pi e^-D .. pi e^D in every row (least slack {min(slack):.2g} nats)."]
    return [*lines, ""]


def _markdown(rows: pd.DataFrame, columns: Sequence[object]) -> list[str]:
    head = f"| {' | '.join(map(str, columns))} |"
    body = [f"| {' | '.join(map(str, row))} |" for row in rows[list(columns)].itertuples(index=False)]
    return [head, f"|{'---|' * len(columns)}", *body]
