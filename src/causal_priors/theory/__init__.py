"""Numbers without training. Pure NumPy and SciPy, no torch."""
