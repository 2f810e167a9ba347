"""Every command of `kifu` by name: what it does in a line, and where it is written.

A command's module is loaded when the command runs, so that reading a run needs neither the time nor the packages that
training one takes.
"""

from collections.abc import Mapping

COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("kifu.cli.init:app", "Write a starter environment and an experiment that runs in seconds."),
    "check": ("kifu.cli.check:app", "Name what an experiment lacks; estimate memory, time, disk and signal."),
    "train": ("kifu.cli.train:app", "Run an experiment."),
    "resume": ("kifu.cli.resume:app", "Go on with a run that stopped or was killed."),
    "eval": ("kifu.cli.evaluate:app", "Evaluate a kept version of a run."),
    "compare": ("kifu.cli.compare:app", "Compare runs of methods, and name what else differs."),
    "audit": ("kifu.cli.audit:app", "Rebuild every figure of a run from its folder alone."),
    "replay": ("kifu.cli.replay:app", "Execute recorded actions again and compare what comes back."),
    "show": ("kifu.cli.show:app", "List a run's records, or print one with every token's origin."),
    "report": ("kifu.cli.report:app", "Write one self-contained HTML page about a run."),
    "export": ("kifu.cli.export:app", "Write a run's weights for transformers, or its records for other tools."),
    "models": ("kifu.cli.models:app", "Get and describe models."),
    "credit": ("kifu.cli.credit:app", "Say what would be trained and why, token by token."),
    "gateway": ("kifu.cli.gateway:app", "Serve a model to any agent and record it, token for token."),
    "check-gateway": ("kifu.cli.gateway_check:app", "Check what a capture gateway, of whatever make, records."),
    "envs": ("kifu.cli.envs:app", "List, describe and check environments."),
    "algorithms": ("kifu.cli.algorithms:app", "List, describe and compare methods."),
    "lab": ("kifu.cli.lab:app", "Small worlds with exact answers."),
    "doctor": ("kifu.cli.doctor:app", "Say what this machine offers."),
}
"""Name to where it is written and what it does."""

LINT_TASK = ("kifu.cli.envs_lint:app", "Try known cheats on a task and say how many its judge pays.")
"""``kifu envs lint``, which starts boxes."""

MINE_COMMITS = ("kifu.cli.envs_mine:app", "Make change records out of the commits of git repositories.")
"""``kifu envs mine``, which starts boxes."""

CHECK_ENVIRONMENT = ("kifu.cli.envs_check:app", "Run the contract's checker over an environment.")
"""``kifu envs check``, which needs what the checkers need."""
