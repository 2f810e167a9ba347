"""What capture gateways record: the cases of `check_capture`, asked of kifu and of two others before one fake model.

    python benchmarks/gateway_capture.py --agentlightning PYTHON --rllm PYTHON --out docs/results/capture.md

``PYTHON`` is the interpreter of an environment with what `benchmarks/gateway_agentlightning.txt` (Python 3.12) or
`benchmarks/gateway_rllm.txt` pins.
"""

import argparse
import tempfile
from pathlib import Path

from gateway_peers import AgentLightning, Rllm

from kifu.testing import CASES, CaptureReport, CaptureSubject, CaseResult, KifuGateway, Met, check_capture

SHOWN = 170
MARKS = {Met.PASS: "pass", Met.FAIL: "**fail**", Met.NOT_APPLICABLE: "n/a"}


def shown(result: CaseResult) -> str:
    """A cell of the table."""
    return "fail (not claimed)" if result.claimed else MARKS[result.met]


def plain(text: str) -> str:
    """A reason on one line that no table or link takes apart."""
    flat = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
    return flat if len(flat) <= SHOWN else f"{flat[:SHOWN]}…"


def page(reports: list[CaptureReport], command: str) -> str:
    """The results as a page."""
    names = [report.subject for report in reports]
    results = [{result.case: result for result in report.results} for report in reports]
    lines = [
        "# What capture gateways record",
        "",
        f"    {command}",
        "",
        "Every gateway stands in front of the same fake model, which spells its turns with one token per character",
        "and knows what it sampled. A record is right when every sampled token is trained exactly once, under the ids",
        "it was sampled with, and nothing else is. The adapters (`benchmarks/gateway_peers.py`) start each gateway as",
        "its pages say and read its record as its trainer does. *Not claimed* marks what a gateway says it does not",
        "do, or leaves to the server behind it; n/a what it has not got. The cases are kifu's own, so that kifu passes",
        "them says less than where the others stand. Their code: `src/kifu/testing/capture_*.py`.",
        "",
        f"| case | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
    ]
    for case in CASES:
        lines.append(f"| {case} | {' | '.join(shown(found[case]) for found in results)} |")
    totals = [
        f"{report.count(Met.PASS)} pass, {len(report.failures)} fail "
        f"({sum(bool(item.claimed) for item in report.failures)} not claimed), {report.count(Met.NOT_APPLICABLE)} n/a"
        for report in reports
    ]
    lines += [f"| **all** | {' | '.join(totals)} |", "", "## What the cases are", ""]
    lines += [f"- **{case}**: {' '.join((run.__doc__ or '').split())}" for case, run in CASES.items()]
    for report in reports:
        lines += ["", f"## What {report.subject} did not pass", ""]
        others = [result for result in report.results if result.met is not Met.PASS]
        for result in others:
            note = f" *Not claimed: {plain(result.claimed)}.*" if result.claimed else ""
            lines.append(f"- {result.case} ({result.met}): {plain(result.reason)}.{note}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Check all and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agentlightning", type=Path)
    parser.add_argument("--rllm", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subjects: list[CaptureSubject] = [KifuGateway(folder / "kifu")]
        if given.agentlightning:
            subjects.append(AgentLightning(given.agentlightning, folder / "agentlightning"))
        if given.rllm:
            subjects.append(Rllm(given.rllm, folder / "rllm"))
        reports = [check_capture(subject, cases=given.only) for subject in subjects]
    for report in reports:
        for result in report.results:
            print(f"{report.subject:26} {result.met:5} {result.seconds:5.1f} s  {result.case:45} {result.reason[:200]}")
    if given.out:
        command = (
            "python benchmarks/gateway_capture.py --agentlightning PYTHON --rllm PYTHON --out docs/results/capture.md"
        )
        given.out.write_text(page(reports, command))


if __name__ == "__main__":
    main()
