"""From text to batches and evaluation blocks. Nothing here imports torch."""
