"""Rows of the kinds "positions" and "evaluation" with planted values, for the tests of the exploratory tables."""

import pandas as pd

L = 16


def logged(values, run="S-log-L16-s0", quantity="exponent"):
    """Positions of one layer: values by step, one number per head."""
    identity = {"run": run, "arm": "log", "size": "S", "train_length": L, "seed": 0}
    rows = [(step, 0, head, quantity, value) for step, heads in values.items() for head, value in enumerate(heads)]
    return pd.DataFrame(rows, columns=["step", "layer", "head", "quantity", "value"]).assign(**identity)


def by_head(arm, run=None):
    """Far mass of one head at 8L, w = L/8."""
    identity = {"run": run or f"S-{arm}-L16-s0", "arm": arm, "size": "S", "train_length": L, "seed": 0}
    row = {"stage": "evaluate", "variant": "plain", "quantity": "far_mass_head", "length": 128, "far_window": 2}
    return pd.DataFrame([{**identity, **row, "layer": 0, "head": 0, "value": 0.4}])
