"""What is wrong with a run: figures are measured or read, rules judge them, and the findings are ranked by cause."""
