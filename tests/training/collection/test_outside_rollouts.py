"""Training agents that know nothing of kifu: their runs audited, resumed, evaluated; what cannot work refused."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kifu.envs import Task
from kifu.envs.suites.calc_tools import CalcTools
from kifu.errors import UsageError
from kifu.gateway import Endpoint, agent
from kifu.models import ModelFolder
from kifu.records import Origin, Purpose, RunReader, StopReason, Trajectory
from kifu.records.plan import read_plan
from kifu.records.rows import content_digest
from kifu.render import DIALECTS, ChatRenderer, load_renderer
from kifu.training import simple
from kifu.training.experiment.layers import Demonstrations
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.inspection.evaluate import Evaluation, evaluate
from kifu.training.inspection.replay import replay_run
from kifu.training.run import train

RECIPES = Path(__file__).parents[3] / "recipes"

AGENT = '''
import json, os, urllib.request

def ask(messages):
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, "max_tokens": 6}).encode()
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    asked.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)["choices"][0]["message"]

def solve(task):
    """Asks, goes on, then forgets everything and asks again: one chain of two turns and one of one."""
    messages = [{"role": "user", "content": task["prompt"]}]
    for word in ("more", "again"):
        messages += [ask(messages), {"role": "user", "content": word}]
    return ask([{"role": "user", "content": "Now: " + task["prompt"]}])["content"] or "nothing"
'''
EXPERIMENT = """
kifu = 1
[environment]
name = "questions.jsonl@judge.py:even"
decision_model = "several messages"
collector_limits = { tokens = 256 }
on_truncation = "terminal"
[policy]
model = "tiny"
decoding = { max_new_tokens = 6 }
[policy.agent]
type = "outside"
run = "agent.py:solve"
[record]
checkpoint_every = 1
[credit]
algorithm = "grpo"
gamma = 1.0
[update]
steps = 2
prompts_per_step = 2
group_size = 4
optimizer = { learning_rate = 1e-2 }
[evaluation]
split = "held_out"
tasks = 2
[machine]
threads = 1
"""


def write_experiment(folder: Path) -> Path:
    """Questions judged by the length of their answers, which a random model gets right now and then."""
    lines = [{"prompt": f"What is {at}?", "split": "held_out" if at % 3 == 0 else "train"} for at in range(12)]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "judge.py").write_text("def even(answer, task):\n    return len(answer) % 2 == 0\n")
    (folder / "agent.py").write_text(AGENT)
    (folder / "any.toml").write_text(EXPERIMENT)
    return folder / "any.toml"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe's check profile, whose agent needs the standard library alone."""
    place = tmp_path_factory.mktemp("any_agent") / "run"
    overrides = ["machine.threads=1", "evaluation.tasks=1", "update.steps=1"]
    train(load_experiment(RECIPES / "any_agent.toml", profile="check", overrides=overrides), out=place, quiet=True)
    return place


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of an agent that edits its history."""
    folder = tmp_path_factory.mktemp("forgetful")
    train(load_experiment(write_experiment(folder)), out=folder / "run", quiet=True)
    return folder / "run"


def records(run: Path, purpose: Purpose) -> list[Trajectory]:
    return [item for item in RunReader(run).trajectories() if item.key.purpose is purpose]


def runs_of(record: Trajectory, renderer: ChatRenderer) -> list[tuple[Origin, str]]:
    """Neighbouring tokens of one origin as text."""
    found: list[tuple[Origin, list[int]]] = []
    for span in record.tapes[0].spans:
        if not found or found[-1][0] is not span.origin:
            found.append((span.origin, []))
        found[-1][1].extend(span.token_ids.tolist())
    return [(origin, renderer.tokenizer.decode(ids)) for origin, ids in found]


def test_the_recipe_trains_and_its_run_audits_clean_with_the_logprobs_it_recorded(recipe: Path) -> None:
    report = audit(recipe)
    assert (report.problems, report.ledger_closed, report.rebuilt) == ((), True, report.records)
    assert report.max_logprob_error is not None
    assert report.max_logprob_error < 1e-4, "the ratio on the policy that sampled is 1"


def test_a_warm_start_shows_the_demonstrators_calls_in_the_agents_own_conversation(
    recipe: Path, tiny_model: ModelFolder
) -> None:
    renderer = load_renderer(tiny_model.path, dialect=DIALECTS["json"])
    warm_start = load_experiment(RECIPES / "any_agent.toml").experiment.update.warm_start
    assert isinstance(warm_start, Demonstrations)
    shown = records(recipe, Purpose.DEMONSTRATION)
    assert len(shown) == 4
    for record in shown:
        task = next(iter(CalcTools.tasks("demonstration", record.environment.seed)))
        numbers = dict(zip((task.data["first"], task.data["second"]), task.data["numbers"], strict=True))  # type: ignore[arg-type]
        calls = CalcTools.demonstrate(task, seed=record.environment.seed, noise=warm_start.noise)
        texts = [
            json.dumps({"tool": call.name, "arg": call.arguments["arg"]}) + "<|im_end|>"
            for call in calls
            if not isinstance(call, str)
        ]
        told = runs_of(record, renderer)
        assert [text for origin, text in told if origin is Origin.DEMONSTRATION] == texts
        answered = [text for origin, text in told if origin is Origin.ENVIRONMENT]
        looked_up = [name for call in texts[:-1] for name in numbers if f'"get", "arg": "{name}"' in call]
        assert [text for text in answered if " = " in text] == [f"{name} = {numbers[name]}" for name in looked_up]
        asked = "".join(text for origin, text in told if origin is Origin.PROMPT)
        assert not any(str(number) in asked for number in numbers.values()), "hidden numbers stand in no prompt"


def test_every_sampled_token_of_an_agent_that_forgets_is_trained_once_under_its_own_prefix(forgetful: Path) -> None:
    trained = records(forgetful, Purpose.TRAIN)
    assert {len(record.tapes) for record in trained} == {2}, "the chain is one row, the fresh start another"
    by_id = {record.id: record for record in trained}
    steps = [line for line in read_plan(forgetful) if line.rows]
    assert steps
    for line in steps:
        shares = defaultdict[str, float](float)
        for row in line.rows:
            record, seen = by_id[row.trajectory], list[tuple[int, int]]()
            for run in row.runs:
                seen += [(run.tape, at) for at in range(run.start, run.stop)]
                shares[record.id] += run.weight * (run.stop - run.start)
            assert len(set(seen)) == len(seen) == record.sampled_tokens
            for tape, at in seen:
                assert _origin(record, tape, at) is Origin.POLICY
        expected = dict.fromkeys(shares, pytest.approx(1 / len(shares)))
        assert dict(shares) == expected, "a rollout counts once, however many rows"


def _origin(record: Trajectory, tape: int, at: int) -> Origin:
    position = record.tapes[tape].fork_at
    for span in record.tapes[tape].spans:
        position += len(span)
        if at < position:
            return span.origin
    raise AssertionError(f"position {at} is not on tape {tape}")


def test_the_run_of_an_agent_that_forgets_audits_clean_and_is_not_replayed(forgetful: Path) -> None:
    report = audit(forgetful, replay=True)
    assert (report.problems, report.ledger_closed) == ((), True)
    assert all("outside agent" in str(found.why_not) for found in replay_run(forgetful).values())


def test_a_version_of_such_a_run_is_evaluated_with_the_agent(forgetful: Path) -> None:
    before = {path.name for path in forgetful.iterdir()}
    summary = evaluate(forgetful, Evaluation(checkpoint="first", tasks=2), keep=False)
    again = evaluate(forgetful, Evaluation(checkpoint="first", tasks=2))
    assert (summary.tasks, summary.success) == (again.tasks, again.success)
    assert {path.name for path in forgetful.iterdir()} == {*before, "evaluations"}


def test_a_run_that_was_killed_goes_on_to_the_same_records_and_weights(forgetful: Path, tmp_path: Path) -> None:
    program = "from kifu.cli import main; main()"
    run, toml = tmp_path / "run", write_experiment(tmp_path)
    plain = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    killed = subprocess.run(
        [sys.executable, "-c", program, "train", str(toml), "--out", str(run)],
        env={**plain, "KIFU_CRASH_AT": "wal.after_fsync#15"},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    subprocess.run([sys.executable, "-c", program, "resume", str(run)], env=plain, capture_output=True, check=True)
    assert _digests(run) == _digests(forgetful)
    assert _versions(run) == _versions(forgetful)


def write_boxed(folder: Path, more: str = "") -> Path:
    """The same agent as a program in a box."""
    toml = write_experiment(folder)
    (folder / "files").mkdir()
    main = "\nprint(solve(json.loads(os.environ['AGENT_TASK'])))\n"
    (folder / "files" / "agent.py").write_text(AGENT + main)
    box = f'command = ["/usr/bin/python3", "agent.py"]\nbox = {{ files = "files"{more} }}'
    toml.write_text(EXPERIMENT.replace('run = "agent.py:solve"', box))
    return toml


def test_an_agent_in_a_box_is_sampled_for_as_it_is_outside(forgetful: Path, tmp_path: Path) -> None:
    """The oracle is the same agent without a box: a rollout's tokens follow from its place in the run alone."""
    run = tmp_path / "run"
    train(load_experiment(write_boxed(tmp_path), overrides=["update.steps=1"]), out=run, quiet=True)
    report = audit(run)
    found = {record.id: _sampled(record) for record in records(run, Purpose.TRAIN)}
    outside = {record.id: _sampled(record) for record in records(forgetful, Purpose.TRAIN)}

    assert (report.problems, report.ledger_closed) == ((), True)
    assert len(found) == 8
    assert found == {name: outside[name] for name in found}
    events = [event for record in records(run, Purpose.TRAIN) for event in record.turns[-1].events]
    assert [event.detail["sandbox"] for event in events if event.kind == "agent.answered"] == ["ns"] * 8


def _sampled(record: Trajectory) -> list[int]:
    return [
        token
        for tape in record.tapes
        for span in tape.spans
        if span.origin is Origin.POLICY
        for token in span.token_ids
    ]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (['policy.agent.command=["python3"]'], "absolute path in the box"),
        (['policy.agent.box.files="nothing"'], r"policy\.agent\.box\.files: no folder .*nothing"),
        (['policy.agent.box.files="."'], "holds the experiment itself"),
        (['policy.agent.box.python="python3"'], "python: found 'python3', expected the interpreter's absolute path"),
        (['policy.agent.command=["/usr/bin/python3", "a\\u0000b"]'], "a null character"),
        (['machine.agent_mounts=[{source="/no/such", target="/opt/x"}]'], "source /no/such is no folder"),
        (['machine.agent_mounts=[{source="/etc", target="/etc"}]'], r"machine\.agent_mounts: mount: /etc would cover"),
        (['machine.agent_mounts=[{source="/etc", target="/usr"}]'], "mount: /usr would cover"),
        (
            ['machine.agent_mounts=[{source="/etc", target="/opt/x"}, {source="/usr", target="/opt/x"}]'],
            r"machine\.agent_mounts: mounts: /usr at /opt/x would hide /etc at /opt/x",
        ),
        (['policy.agent.box.backends=["podman"]'], "ns"),
        (['policy.agent.box.require=["no_net"]'], "no guarantee `no_net`; did you mean"),
        (["policy.agent.box.seconds=0"], "more than 0.0"),
        (["policy.agent.box.second=1"], r"policy\.agent\.box\.second: unknown field; did you mean `seconds`"),
        (['machine.agent_mounts=[{source="/etc", taget="/opt"}]'], "unknown field; did you mean `target`"),
    ],
)
def test_a_box_that_cannot_be_made_is_refused(tmp_path: Path, overrides: list[str], why: str) -> None:
    toml = write_boxed(tmp_path)
    with pytest.raises(UsageError, match=why):
        prepare(load_experiment(toml, overrides=overrides))


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ('policy.agent.command=["/opt/no/such", "agent.py"]', "the box has no program /opt/no/such"),
        ('policy.agent.box.python="/usr/bin/python9"', "the box has no interpreter /usr/bin/python9 that starts"),
    ],
)
def test_what_the_box_lacks_is_told_before_the_first_attempt(tmp_path: Path, override: str, why: str) -> None:
    toml = write_boxed(tmp_path)
    with pytest.raises(UsageError, match=why):
        train(load_experiment(toml, overrides=[override]), out=tmp_path / "run", quiet=True)


def test_a_box_holds_a_command_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="box: holds a `command`"):
        prepare(load_experiment(write_experiment(tmp_path), overrides=["policy.agent.box={}"]))


def _digests(run: Path) -> Mapping[str, str]:
    return {item.id: content_digest(item) for item in RunReader(run).trajectories()}


def _versions(run: Path) -> list[str]:
    return [json.loads(line)["digest"] for line in (run / "weights" / "versions.jsonl").read_text().splitlines()]


def spoken(task: Task, endpoint: Endpoint) -> str:
    """An agent inside this process: one call."""
    said = [{"role": "user", "content": task.data["prompt"]}]
    body = json.dumps({"model": endpoint.model, "messages": said, "logprobs": True, "top_logprobs": 2})
    asked = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body.encode())
    asked.add_header("x-api-key", endpoint.key)
    with urllib.request.urlopen(asked) as answer:
        choice = json.load(answer)["choices"][0]
    assert all(len(token["top_logprobs"]) == 2 for token in choice["logprobs"]["content"])
    return str(choice["message"]["content"])


def even(answer: str, task: Task) -> bool:
    """Half of all answers."""
    return len(answer) % 2 == 0


def test_a_decorated_function_is_trained_from_python_and_its_run_audits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiment(tmp_path)
    monkeypatch.chdir(tmp_path)
    changed = {"steps": 1, "prompts_per_step": 1, "group_size": 2}
    settings: dict[str, Any] = {"policy.decoding.max_new_tokens": 6, "evaluation.tasks": 1, "machine.threads": 1}
    simple.train(
        tasks="questions.jsonl",
        reward=even,
        agent=agent(spoken),
        model="tiny",
        out="run",
        quiet=True,
        update=changed,
        **settings,
    )
    found = records(tmp_path / "run", Purpose.TRAIN)
    assert [len(record.turns) for record in found] == [1, 1]
    noted = json.loads((tmp_path / "run" / "run.json").read_text())["experiment"]["policy"]["agent"]
    assert noted["function"].endswith(":spoken")


def test_an_agent_that_breaks_stops_the_run_with_its_own_words(tmp_path: Path) -> None:
    toml = write_experiment(tmp_path)
    (tmp_path / "agent.py").write_text("def solve(task):\n    raise RuntimeError('no network')\n")
    told = subprocess.run(
        [sys.executable, "-c", "from kifu.cli import main; main()", "train", str(toml), "--out", str(tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 3, "the exit code of a failing environment"
    assert "agent_error: file:agent.py:solve: RuntimeError: no network (agent.py, line 2)" in told.stderr
    [record, *_] = records(tmp_path / "run", Purpose.TRAIN) or records(tmp_path / "run", Purpose.EVALUATION)
    assert (record.outcome.reason, record.reward) == (StopReason.AGENT_ERROR, None)


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ('policy.decoding.grammar="tools"', "asks for a form by itself"),
        ("policy.prompt.examples=1", "writes its own prompt"),
        ("policy.prompt.trust='marks/1'", "writes its own prompt"),
        ('policy.agent.run="agent.py:nothing"', "defines no function `nothing`"),
        ('policy.agent.run="nowhere.py:solve"', "no file"),
        ('policy.agent.run="agent"', "expected `path/to/file.py:function`"),
        ('policy.agent.command=["x"]', "one of `run`"),
        ('policy.agent.verifier="judge.py:odd"', "has no function `odd`"),
        ('credit={algorithm="aepo",gamma=1.0}', "branch at turns of others"),
    ],
)
def test_what_an_outside_agent_cannot_do_is_refused(tmp_path: Path, override: str, why: str) -> None:
    toml = write_experiment(tmp_path)
    with pytest.raises(UsageError, match=why):
        prepare(load_experiment(toml, overrides=[override]))


def test_the_agents_code_is_part_of_the_protocol_and_its_place_is_not(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        write_experiment(folder)
    hashes = {prepare(load_experiment(folder / "any.toml")).protocol.hash for folder in (one, two)}
    assert len(hashes) == 1
    (two / "agent.py").write_text(AGENT.replace("Now: ", "And now: "))
    assert prepare(load_experiment(two / "any.toml")).protocol.hash not in hashes
