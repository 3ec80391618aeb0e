"""One contract, Gymnasium's, for everything that steps environments."""
