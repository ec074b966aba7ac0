"""Training: the stages of a run, their losses and controls, states that survive a kill. See ``fmpipe train --help``."""
