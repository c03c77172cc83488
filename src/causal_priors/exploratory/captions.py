"""What each exploratory table is, and in which units: the captions of the page."""

from causal_priors.exploratory.bootstrap import CONFIDENCE, LEAST, RESAMPLES
from causal_priors.exploratory.drift import NEAR

INTERVALS = f"""How sure are the differences that the registered tests look at? Each comparison of each test gets a
{CONFIDENCE:.0%} interval by bootstrap (BCa, {RESAMPLES:,} draws, fixed seed) over evaluation blocks of 8L targets,
paired: both sides are measured on the same block. The interval is about other blocks of text like these, for the
checkpoints at hand; it says nothing about other seeds, and documents are few. Columns count a test's comparisons (one
per seed, comparator or checkpoint) by where their interval lies: wholly beyond the frozen threshold on the holding
side, wholly short of it, or across it (open). Fewer than {LEAST} blocks give no interval. On simulated differences,
intervals of 8 blocks cover the truth in 81 to 86% of cases, of 32 in 92 to 94%, of 64 in 94%. Neighbours: largest
correlation of blocks that follow each other; where it is large, intervals are too narrow. Differences in the unit of
the metric. Rows: `intervals.csv`."""

SENSITIVITY = """At which threshold would the verdict be another one? Each threshold was moved alone and the test
scored again by the scoring code; shown is the nearest value on each side that changes the outcome, in the unit of the
metric. At exactly that value a difference still counts as reaching the threshold (except where a rule is strict).
Rows: `sensitivity.csv`."""

EDITS = """What cap and repair change, by position of the target in windows of 8L: mean over the seeds of after minus
before, in nats per target; in brackets, of how many checkpoints the interval over blocks lies above / below zero
(changes below the registered resolution of the arithmetic count as neither). Positions 1 to L see no pair that is
changed. Far mass: change of the share of attention at distance L/8 or more. Rows, with intervals and far mass at both
windows: `edits.csv`."""

EXPONENTS = f"""Does training drive exponents to one, where a log-prior ceases to be summable? All heads of all seeds
of an arm: mean exponent and mean distance from one before and after training, heads within {NEAR:g} of one, and heads
that ended nearer to one, farther from it, or on its other side. Exponents have no unit. Rows per run:
`exponents-moved.csv`; over training steps: `exponents.csv`."""

FAR_MASS = """Far mass (share of attention at distance L/8 or more) as measured, and as the trained position predicts
it if all content scores are equal: mean over heads and seeds. Growth is 8L minus L. Rows per head, window length and
both far windows: `far-mass.csv`."""

CONTROLS = """Negative controls of cap and repair, on arms without a log-prior, at windows of 8L. *identity*: an edit
that changes nothing (cap of a flat prior); every value must be the same to the last bit. *sham*: each pair beyond L
gets ± ln((1 + d) / (1 + L)) with a random sign, the size of what cap does to a log-prior of exponent 1. A fair sign
of a logit is no fair sign of a weight: weights grow by the cosh of that on average, so far mass rises. *sham-even*:
the same without that growth. Mean over seeds of after minus before, in nats per target, by position; same bits:
values that did not move at all. Rows: `controls.csv`."""
