"""Analyses that nobody registered. They read what the study wrote, and enter no verdict."""

TABLES = ("intervals", "sensitivity", "edits", "exponents", "exponents-moved", "far-mass", "controls", "absent")
PAGE = "exploratory.md"
