"""`python -m causal_priors`.

The garbage collector looks less often: importing PyTorch makes a million objects that live to the end, and looking at
them again and again took a fifth of a short job's start.
"""

import gc
import os
import sys

if __name__ == "__main__":
    gc.set_threshold(1_000_000)
    code = None
    if "CAUSAL_PRIORS_WARM" in os.environ:
        from causal_priors.warm import hand_over

        code = hand_over(sys.argv[1:])
    if code is None:
        from causal_priors.cli import main

        code = main()
    sys.exit(code)
