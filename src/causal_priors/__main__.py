"""`python -m causal_priors`.

The garbage collector looks less often: importing PyTorch makes a million objects that live to the end, and looking at
them again and again took a fifth of a short job's start.
"""

import gc
import sys

if __name__ == "__main__":
    gc.set_threshold(1_000_000)
    from causal_priors.cli import main

    sys.exit(main())
