"""Conformance checks of the contracts; run them on your own implementations."""

from kifu.testing.environments import check_env

__all__ = ["check_env"]
