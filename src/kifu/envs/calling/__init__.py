"""Calling an environment's code: on a thread or in a process, within limits, every failure attributed."""
