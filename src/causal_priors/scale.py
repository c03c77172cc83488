"""A scale: sizes and budgets of one study, and nothing else.

Arms, seeds, tests and thresholds are the same at every scale. The digest of a scale is part of every verdict.
"""

from dataclasses import asdict, dataclass
from typing import Any

from causal_priors.artifacts import digest_of


@dataclass(frozen=True)
class Size:
    """One model size with its training budget. Lengths and budgets in tokens, rates per step."""

    width: int
    depth: int
    heads: int
    train_length: int
    steps: int
    tokens_per_step: int
    learning_rate: float
    warmup_fraction: float
    final_fraction: float

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    def non_embedding_parameters(self) -> int:
        """Parameters of the blocks and the final norm, without the embedding and any positional parameter."""
        return self.depth * (12 * self.width**2 + 13 * self.width) + 2 * self.width


@dataclass(frozen=True)
class Scale:
    """All that `workflow/config/scales/{name}.yaml` says."""

    name: str
    status: str
    tokenizer: str
    vocabulary: int
    evaluation_tokens: int
    minimum_blocks: int
    intervention_dtype: str
    max_corpus_repeats: float
    sizes: dict[str, Size]

    @property
    def wants_gpu(self) -> bool:
        """Whether it is one of those for a GPU: the others measure swapped biases in float64 (study.md 3)."""
        return self.intervention_dtype != "float64"

    def digest(self) -> str:
        """sha256 of the scale's content (not of its comments)."""
        return digest_of(self.resolved())

    def resolved(self) -> dict[str, Any]:
        """The scale as plain data."""
        return asdict(self)
