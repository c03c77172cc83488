"""Recheck a finished study from its files alone: digests from corpus to verdict, seals, verdicts, history. No torch."""
