"""What is wrong with a run: metrics while it trains, checks with verdicts, what the diary's lines mean."""
