"""Experiment 0006, exploratory: Goat's own tests on every arm. Nothing here enters a registered verdict.

`mixture` and `retrieval` make the sequences, `teach` trains, `look` reads attention, `probe` measures one arm, `collect`
makes tables of all, `draw` figures. Sealed plan: preregistration/exploratory/0006-goat.
"""

EXPERIMENT = "0006"
# The mixture as registered; and, after the fact, one whose copies stand one place further back (see mixture.py), for a few
# arms beside Goat.
MIXTURE, TWO_BACK = "mixture", "two-back"
TWO_BACK_ARMS = ("nope", "rope", "alibi", "goat")
# Retrieval as registered; and, after the fact, with so many times its steps, for arms that had not learnt the tasks in it.
RETRIEVAL, LONGER = "retrieval", "retrieval-longer"
LONGER_ARMS, LONGER_TIMES = ("alibi", "goat"), 2
# The collected tables (csv) and figures, without suffix.
TABLES = (MIXTURE, TWO_BACK, "prior", RETRIEVAL, LONGER, "reach", "sinks", "margin", "predictions")
FIGURES = (MIXTURE, "prior", f"prior-{TWO_BACK}", RETRIEVAL, LONGER, "reach", "sinks", "margin")
PAGE = "goat.md"
