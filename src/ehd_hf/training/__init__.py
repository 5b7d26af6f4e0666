"""The training loop, and what `ehd-hf train` does with it."""
