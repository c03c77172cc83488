"""Training: the loop, its optimiser, its resume state and its checkpoints."""
