"""What stands in the rows of a script's step."""
