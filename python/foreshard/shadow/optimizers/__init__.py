"""What the script's optimizers do to memory."""
