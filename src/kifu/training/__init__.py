"""The loop: experiments read and frozen, runs collected, trained, resumed, evaluated, audited and exported.

The functions a user calls are public names of the package `kifu`. This module imports nothing, so that reading an
experiment file needs neither the time nor the packages that training takes.
"""
