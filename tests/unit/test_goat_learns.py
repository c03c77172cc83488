"""What the mixture teaches a prior that has nothing to hide behind: attention whose content logits are zero throughout."""

from dataclasses import replace

import torch
from helpers import scale

from causal_priors.config import ROOT
from causal_priors.goat.draws import Draws
from causal_priors.goat.registered import load_design, probed_arm
from causal_priors.goat.teach import teach
from causal_priors.model import Transformer
from causal_priors.priors.base import PriorContext


def test_the_sink_rises_at_the_first_key_and_the_relative_part_peaks_at_lag_one():
    design = load_design(ROOT / "preregistration", scale("micro"))
    # The registered mixture, but of the token one lag from the query that predicts; one layer, so that attention is once.
    mixture, length = replace(design.copy.mixture, back=2), design.train_length
    size = replace(design.size, depth=1, steps=300, learning_rate=0.01)
    torch.set_num_threads(1)
    model = Transformer(size, mixture.vocabulary, probed_arm("goat", design), length, 0)
    block = model.layers[0]
    with torch.no_grad():
        # With query and key both zero neither gets a gradient: logits stay those of the prior.
        block.qkv.weight[: 2 * size.width] = 0.0
        block.qkv.bias[: 2 * size.width] = 0.0

    def loss_of(step):
        ids = torch.from_numpy(mixture.sequences(Draws(1, step), 8, length + 1))
        return model(ids[:, :-1], ids[:, 1:]).mean()

    lesson = teach(model, size, design.copy.position_lr, loss_of)
    assert lesson.diverged_at is None
    assert not block.qkv.weight[: 2 * size.width].any()
    j = torch.arange(length)
    u = block.log_prior.key_lane(j)
    k = block.log_prior.relative(PriorContext(j[-1:], j))[:, 0].flip(-1)
    # By the thresholds of predictions 0006-1 and 0006-2.
    rise = u[:, 0] - u[:, 1:].amax(-1)
    assert float(rise.max()) >= 0.5, rise
    peaked = k[k.argmax(-1) == 1]
    assert len(peaked), k
    assert float((peaked[:, 1] - torch.maximum(peaked[:, 0], peaked[:, 2])).max()) >= 0.1, k
