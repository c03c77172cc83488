"""A block of query rows of a long window needs memory for that block alone: no T x T tensor for any head."""

import subprocess
import sys

import pytest

# The last 512 rows of 16,384 tokens and 12 heads, as evaluation asks for them. One T x T bias would be 12 GB.
PROGRAM = """
import resource, sys, torch
from causal_priors.arms import ARMS
from causal_priors.attention import softmax
from causal_priors.priors.base import BoundPrior, Geometry
torch.set_num_threads(1)
T, H, D = 16384, 12, 64
prior = ARMS[sys.argv[1]].log_prior.load()(Geometry(H * D, H, D, 1024), torch.Generator().manual_seed(0))
x, q, k = torch.randn(1, T, H * D), torch.randn(1, H, T, D), torch.randn(1, H, T, D)
with torch.no_grad():
    bound = BoundPrior(prior, prior.tokens(x, q, k))
    for block in softmax.row_blocks(range(T - 512, T), H * T, q.device):
        bias = softmax.masked_bias(bound, block, q)
        assert bias.shape[1:] == (H, len(block), block.stop)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("key", ["fox", "cable", "grape-a", "grape-ap", "goat"])
def test_long_windows_stay_under_two_gigabytes(key):
    done = subprocess.run([sys.executable, "-c", PROGRAM, key], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2048
