"""Preregistration: protocols as data, their seals, and the scoring of what was registered."""
