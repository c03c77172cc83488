"""Try out an arm of one's own on a tiny random window, before hours are spent on it.

Shape legend: B batch, T tokens, C model width, H heads, D head dim, R query rows, S key columns.
"""

import torch
from torch import Tensor

from causal_priors.arms import Arm
from causal_priors.model import Transformer
from causal_priors.priors.base import BoundPrior, LogPrior
from causal_priors.runs import EVALUATION_FACTORS
from causal_priors.scale import Size

_LENGTH = 24
_LONGEST = max(EVALUATION_FACTORS) * _LENGTH
_SIZE = Size(32, 1, 4, 16, 1, 128, 1e-3, 0.1, 0.1)


def problem_of(arm: Arm) -> str:
    """Say what is wrong with the arm's log-prior, or nothing: an empty text.

    It must be a LogPrior that takes its initial values from its generator, with finite biases [B or 1, H, R, S] in
    float32, up to the longest windows that are evaluated, equal for any block of rows, equal to its `score` and
    `distance_form` where it has them, and blind to later tokens; and every parameter must get a gradient.
    """
    if arm.log_prior is not None:
        name, prior_class = arm.log_prior.ref.partition(":")[2], arm.log_prior.load()
        if not _is_log_prior(prior_class):
            return f"{name} is not a LogPrior"
        if prior_class.forward is LogPrior.forward:
            return f"{name} has no forward, which returns its biases"
    model, again = _model(arm), _model(arm)
    if any(not torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)):
        return "starts differently from the same seed: take initial values from the generator"
    x_BTC = _tokens(_LENGTH)
    prior = _bound(model, x_BTC)
    if prior is not None and (problem := _problem_of_bias(model, prior, x_BTC) or _problem_of_forms(prior)):
        return problem
    ids_BT = torch.arange(2 * _LENGTH).view(2, _LENGTH) % 50
    torch.autograd.backward(model(ids_BT, ids_BT).mean())
    without = [name for name, p in model.positional_parameters() if p.requires_grad and p.grad is None]
    return f"parameter {without[0]} gets no gradient" if without else ""


def _is_log_prior(part: object) -> bool:
    return isinstance(part, type) and issubclass(part, LogPrior)


def _model(arm: Arm) -> Transformer:
    return Transformer(_SIZE, 50, arm, _SIZE.train_length, 0)


def _tokens(length: int) -> Tensor:
    return torch.randn(2, length, _SIZE.width, generator=torch.Generator().manual_seed(1))


def _bound(model: Transformer, x_BTC: Tensor) -> BoundPrior | None:
    block = model.layers[0]
    return block.place(*block.content(x_BTC))[3]


def _problem_of_bias(model: Transformer, prior: BoundPrior, x_BTC: Tensor) -> str:
    every, some = torch.arange(_LENGTH), torch.arange(9, 14)
    bias_BHRS = prior(every, every)
    shape, allowed = tuple(bias_BHRS.shape), [(batch, _SIZE.heads, _LENGTH, _LENGTH) for batch in (1, 2)]
    if shape not in allowed:
        return f"returns a bias of shape {list(shape)}, not [B or 1, H, R, S] = {list(allowed[0])}"
    if bias_BHRS.dtype != torch.float32:
        return f"returns a bias in {bias_BHRS.dtype}, not in float32"
    past_BHRS = bias_BHRS.tril()
    if not bias_BHRS.isfinite().all():
        return "returns a bias that is not finite"
    longer, long_prior = torch.arange(_LONGEST), _bound(model, _tokens(_LONGEST))
    assert long_prior is not None
    if not long_prior(longer, longer).tril().isfinite().all():
        return f"returns a bias that is not finite in windows of {_LONGEST} tokens, {_LONGEST // _LENGTH} times as long"
    block_BHRS = prior(some, every)
    if block_BHRS.shape[2:] != (len(some), _LENGTH) or not torch.allclose(
        block_BHRS.tril(9), past_BHRS[:, :, some], rtol=1e-4, atol=1e-5
    ):
        return "returns other biases for a block of rows than for the whole window: use context.i_R and context.j_S"
    changed_BTC = x_BTC.clone()
    changed_BTC[:, 15:] += 1.0
    other = _bound(model, changed_BTC)
    assert other is not None
    if not torch.allclose(other(every, every)[:, :, :15].tril(), past_BHRS[:, :, :15], rtol=1e-4, atol=1e-5):
        return "lets a token change the bias of an earlier query"
    return ""


def _problem_of_forms(prior: BoundPrior) -> str:
    """The other forms in which a prior may give its biases, which fused kernels and transport take instead of them.

    A class that overrides `forward` inherits those of its parent.
    """
    every = torch.arange(_LENGTH)
    past_BHRS = prior(every, every).tril()
    index = torch.meshgrid(*(torch.arange(n) for n in (len(past_BHRS), *past_BHRS.shape[1:])), indexing="ij")
    remedy = "override it together with forward, or return None from it"
    if (score := prior.score(every)) is not None and not _close(torch.as_tensor(score(*index)), past_BHRS):
        return f"returns other biases from score than from forward: {remedy}"
    if (form := prior.distance_form()) is not None:
        distance_RS = (every[:, None] - every).clamp_min(0).float()
        growth_RS = distance_RS.log1p() if form[0] == "log" else distance_RS
        if not _close(-form[1][:, None, None] * growth_RS, past_BHRS):
            return f"returns other biases from distance_form than from forward: {remedy}"
    return ""


def _close(found: Tensor, past_BHRS: Tensor) -> bool:
    return torch.allclose(found.expand_as(past_BHRS).tril(), past_BHRS, rtol=1e-4, atol=1e-5)
