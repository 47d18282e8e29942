"""What an experiment will do and cost, told before anything runs and without a target's weights."""
