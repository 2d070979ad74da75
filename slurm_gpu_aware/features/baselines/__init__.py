"""Published schedulers that simulations compare with."""
