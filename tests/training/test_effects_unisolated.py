"""What happened without isolation is named by the audit of the log of effects."""

from pathlib import Path

import pytest

from kifu.sandbox import EFFECTS, EffectFile
from kifu.training.effects_audit import effects_problems


@pytest.mark.parametrize(("isolation", "said"), [("none", 1), ("proved", 0)])
def test_an_episode_without_isolation_is_a_problem_of_the_audit(tmp_path: Path, isolation: str, said: int) -> None:
    file = EffectFile(tmp_path / EFFECTS)
    file.chain("episode-1").note("open", facts={"backend": "b", "isolation": isolation})
    file.chain("episode-2").note("open", facts={"backend": "b", "isolation": "proved"})
    file.close()
    problems = effects_problems(tmp_path, [], seals={"run.json": file.seal})
    assert len(problems) == said
    assert all("1 chains, episode-1 the first" in problem and "without isolation" in problem for problem in problems)
