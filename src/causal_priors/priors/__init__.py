"""Log-priors: additive positional biases behind one interface."""
