"""Runs in a box: repository tests by pytest, their outcomes as one JSON line on the descriptor that stdout was.

The ids come on standard input, so that no argument list shows them; tests and pytest lie on read-only folders; the
order is shuffled. Standard library and pytest only.
"""

import importlib
import json
import os
import random
import sys
from typing import Any


class Outcomes:
    """The pytest plugin that keeps what each test did."""

    def __init__(self, order: str) -> None:
        self._order = order
        self.found: dict[str, list[str]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Shuffle."""
        items.sort(key=lambda item: item.nodeid)
        random.Random(self._order).shuffle(items)

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401  # pytest's own report
        """Keep the worst of set-up, call and tear-down, and by which exception it failed."""
        if report.when != "call" and report.outcome == "passed":
            return
        kind = "" if report.outcome == "passed" else str(getattr(report, "kifu_raised", ""))
        if hasattr(report, "wasxfail"):
            kind = "xfail"
        known = self.found.get(report.nodeid)
        if known is None or known[0] == "passed":
            self.found[report.nodeid] = [report.outcome, report.when, kind]

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:  # noqa: ANN401  # pytest's own types
        """Note the exception on the report of the next hook."""
        report = importlib.import_module("_pytest.reports").TestReport.from_item_and_call(item, call)
        report.kifu_raised = call.excinfo.type.__name__[:60] if call.excinfo is not None else ""
        return report


def _find_again(libraries: list[str]) -> None:
    """Let packages loaded before this box had its root find the rest of themselves where the box shows them."""
    for module in list(sys.modules.values()):
        places = list(getattr(module, "__path__", ()))
        for library in libraries:
            for place in places:
                if not os.path.isdir(place) and library in place:  # noqa: PTH112  # before anything else is imported
                    module.__path__ = [place[place.index(library) :]]


def main() -> None:
    """Read ``{"tests", "roots", "ids", "order"}``, run, report, leave without running exit handlers."""
    out = os.dup(1)
    os.set_inheritable(out, False)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    request = json.loads(sys.stdin.buffer.read())
    dumps, write, leave = json.dumps, os.write, os._exit
    sys.path[:0] = request["libraries"]
    _find_again(request["libraries"])
    pytest = importlib.import_module("pytest")
    sys.path += request["roots"]
    sys.dont_write_bytecode = True
    plugin = Outcomes(request["order"])
    tests = request["tests"]
    arguments = ["-c", "/dev/null", "--rootdir", tests, "--confcutdir", tests, "--noconftest", "-o", "addopts="]
    arguments += ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-q", "--import-mode=importlib", "-W", "ignore"]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    chosen = [f"{tests}/{name}" for name in (request["ids"] or request["files"])]
    status = int(pytest.main([*arguments, *chosen], plugins=[plugin]))
    report = dumps({"status": status, "outcomes": plugin.found, "nonce": request["nonce"]})
    data = (report + "\n").encode()
    while data:
        data = data[write(out, data) :]
    leave(status)


if __name__ == "__main__":
    main()
