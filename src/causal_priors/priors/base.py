"""The one log-prior interface: what every positional bias offers to every attention implementation.

Shape legend: B batch, H heads, T tokens of the window, R query rows asked for, S key columns asked for, C model width,
D head dim. A log-prior adds b[i, j] to the attention logit of query i and key j <= i, after the 1/sqrt(D) scaling, in
float32 or wider. Any block of rows and columns can be asked for; nothing needs all T x T at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# The bias of one pair: takes batch item, head, query position and key position as integer tensors without axes.
Score = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Geometry:
    """What a positional module may know of the model it sits in."""

    width: int
    heads: int
    head_dim: int
    train_length: int


@dataclass(frozen=True)
class PriorContext:
    """One question to a log-prior: these query rows against these key columns.

    i_R, j_S: absolute positions in the window (int64). tokens: what `LogPrior.tokens` returned for this window (None
    for priors of distance alone).
    """

    i_R: Tensor
    j_S: Tensor
    tokens: Any = None

    def distance_RS(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Lag d = i - j, clamped at 0 where j > i (those pairs are masked by the caller)."""
        return (self.i_R[:, None] - self.j_S[None, :]).clamp_min(0).to(dtype)


class LogPrior(nn.Module):
    """A positional bias b[i, j]. Subclasses take (geometry, generator, **options of the arm's row).

    `generator` is the positional parameters' own random stream: a prior must draw its initial values from it alone, so
    that all other weights are the same in every arm.
    """

    # True where b[i, j] never rises as j moves away from i: then repair makes any such prior summable.
    non_increasing: bool = False

    def __init__(self, geometry: Geometry, generator: torch.Generator) -> None:
        super().__init__()
        self.geometry = geometry

    def tokens(self, x_BTC: Tensor, q_BHTD: Tensor, k_BHTD: Tensor) -> Any:
        """Per-token quantities of a window, computed once: gates, their running sums. None where position is all.

        x is the normed input of the attention layer, q and k the content projections before any rotation; float32 or
        wider each, whatever the precision of the layers around.
        """
        return None

    def forward(self, context: PriorContext) -> Tensor:
        """Return b [B or 1, H, R, S] in float32 (float64 where the model is); values at j > i are finite and unused."""
        raise NotImplementedError

    def score(self, context: PriorContext) -> Score | None:
        """The biases of a whole window pair by pair, for a GPU's fused attention; None: by `forward`, in row blocks.

        context: the window's positions 0 .. T - 1 as rows and as columns, and its tokens. The function may look up
        tensors [T], [H, T], [B, H, T] and compute from what it finds, in float32; pairs j > i must be finite. A tensor
        that takes a gradient is looked up at one place in it (give a second place a clone).
        """
        return None

    def parameters_report(self) -> dict[str, list[float]]:
        """Positional quantities per head worth logging over training, e.g. {"exponent": [...]}; empty without any."""
        return {}

    def summable(self) -> bool | None:
        """Does sum over d of exp(b(d)) converge in every head? None: it depends on the data."""
        return None


def score_of_distance(prior: LogPrior, context: PriorContext) -> Score:
    """`LogPrior.score` of a prior of the lag alone: its biases at lags 0 .. T - 1, [H, T], looked up."""
    last_1, back_T = context.i_R[-1:], context.i_R.flip(0)
    table_HT: Tensor = prior(PriorContext(last_1, back_T))[0, :, 0]
    return lambda b, h, i, j: table_HT[h, (i - j).abs()]


class BoundPrior:
    """A log-prior with the tokens of one window: what an attention implementation is handed.

    Call it with rows and columns for a block of biases. `tensors()` lists what the biases may be differentiated by.
    """

    def __init__(self, prior: LogPrior, tokens: Any = None) -> None:
        self.prior = prior
        self.token_state = tokens
        self._score: Score | None = None

    def __call__(self, i_R: Tensor, j_S: Tensor) -> Tensor:
        """Biases [B or 1, H, R, S] of query rows i_R against key columns j_S."""
        bias_BHRS: Tensor = self.prior(PriorContext(i_R, j_S, self.token_state))
        return bias_BHRS

    def score(self, position_T: Tensor) -> Score | None:
        """The score function of this window, whose positions are given; None where the log-prior has none."""
        if self._score is None:
            self._score = self.prior.score(PriorContext(position_T, position_T, self.token_state))
        return self._score

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor through which a gradient may leave the biases: parameters and per-token quantities."""
        leaves = [parameter for parameter in self.prior.parameters() if parameter.requires_grad]
        return (*leaves, *_tensors_in(self.token_state))

    def isolated(self) -> "BoundPrior":
        """The same biases over leaves: per-token quantities cut from the graph that made them.

        For implementations that differentiate blocks of biases by themselves: `torch.autograd.grad(block,
        isolated.tensors())` stops at these leaves. Through the attached ones it would run on to the parameters that
        made the gates and count those twice. Same order as `tensors()`.
        """
        return BoundPrior(self.prior, _cut(self.token_state))

    def distance_form(self) -> tuple[str, Tensor] | None:
        """("log" | "linear", coefficient [H]) if b = -coefficient * ln(1+d) or -coefficient * d, else None."""
        form = getattr(self.prior, "distance_form", None)
        return None if form is None else form()


def _tensors_in(state: Any) -> tuple[Tensor, ...]:
    if isinstance(state, Tensor):
        return (state,) if state.requires_grad else ()
    if isinstance(state, dict):
        state = tuple(state.values())
    if isinstance(state, (tuple, list)):
        return tuple(leaf for part in state for leaf in _tensors_in(part))
    return ()


def _cut(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().requires_grad_(state.requires_grad)
    if isinstance(state, dict):
        return {name: _cut(part) for name, part in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(_cut(part) for part in state))
    if isinstance(state, (tuple, list)):
        return type(state)(_cut(part) for part in state)
    return state
