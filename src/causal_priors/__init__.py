"""A preregistered reproduction of a study of positional priors in causal attention."""

__version__ = "0.1.0"
