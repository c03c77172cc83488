"""Experiment 0006, exploratory: Goat's own tests on every arm. Nothing here enters a registered verdict.

`mixture` and `retrieval` make the sequences, `teach` trains, `look` reads attention, `probe` measures one arm, `collect`
makes tables of all, `draw` figures. Sealed plan: preregistration/exploratory/0006-goat.
"""

EXPERIMENT = "0006"
# The collected tables (csv) and figures, without suffix.
TABLES = ("mixture", "prior", "retrieval", "sinks", "margin", "predictions")
FIGURES = ("mixture", "prior", "retrieval", "sinks", "margin")
PAGE = "goat.md"
