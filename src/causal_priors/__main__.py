"""`python -m causal_priors`."""

import sys

from causal_priors.cli import main

if __name__ == "__main__":
    sys.exit(main())
