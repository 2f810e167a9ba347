"""Draw the two pictures of the README from a run of recipes/key_door_text.toml.

scripts/pictures.py RUN TRAJECTORY    writes docs/images/learning_curve.svg and docs/images/transcript.svg
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kifu.cli.show import STYLES
from kifu.dashboard import decoder_of, learning_curve, transcript
from kifu.monitor import RunFolder
from kifu.records import RunReader

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
TURNS_FROM = "<|im_start|>user\nYou see"


def main() -> int:
    """Write both files."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    run, name = Path(sys.argv[1]), sys.argv[2]
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "learning_curve.svg").write_text(learning_curve(run))
    found = RunReader(run).find(name)
    decode, _ = decoder_of(RunFolder.open(run))
    console = Console(record=True, width=92, file=io.StringIO())
    legend = Text("origins: ")
    for origin, style in STYLES.items():
        legend.append(f"{origin.value} ", style=style)
    console.print(legend)
    body = Text()
    for piece in transcript(found, decode, tape=0).pieces:
        body.append(piece.text, style=STYLES[piece.origin])
    at = body.plain.rfind(TURNS_FROM)  # the worked example of the prompt is left out
    console.print(body[max(at, 0) :])
    svg = console.export_svg(title=name)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # the page's own fonts; nothing is fetched
    (IMAGES / "transcript.svg").write_text(re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL))
    print(IMAGES)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
