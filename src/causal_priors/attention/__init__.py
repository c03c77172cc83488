"""Attention: softmax and transport, rotations, and the dispatch between implementations."""
