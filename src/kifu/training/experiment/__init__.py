"""From an experiment file to a frozen protocol and to everything that a run needs short of weights in memory."""
