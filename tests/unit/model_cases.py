"""Small models of every arm for tests: built, shaken off their initial positions, fed with random tokens."""

import torch

from causal_priors.arms import ARMS
from causal_priors.model import Transformer
from causal_priors.scale import Size

VOCABULARY = 50
TRAINED = 16
MARGINS = {"log-margin-t050": 0.5, "log-margin-t020": 0.8, "log-margin-t005": 1.1}


def size(width=32, depth=2, heads=4, train_length=TRAINED):
    return Size(width, depth, heads, train_length, 10, 128, 1e-3, 0.1, 0.1)


def build(arm, *, seed=0, vocabulary=VOCABULARY, margins=MARGINS, **shape):
    """A model of an arm (its key, or a row)."""
    small = size(**shape)
    row = ARMS[arm] if isinstance(arm, str) else arm
    return Transformer(small, vocabulary, row, small.train_length, seed, margins)


def moved(model, seed=7, scale=0.3):
    """The model with larger weights and its positions moved: differences between arms are then no rounding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in model.other_parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
        for _, parameter in model.positional_parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model


def tokens(batch=2, length=40, seed=3, vocabulary=VOCABULARY):
    """Random ids and targets [B, T]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (2, batch, length), generator=generator)
