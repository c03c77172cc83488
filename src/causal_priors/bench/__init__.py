"""Speed and memory, as ratios within one run. Nothing here enters a digest or a verdict."""
