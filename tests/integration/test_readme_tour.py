"""README's tour: every command that it has its readers type is run, in its order.

A command that stands in README and not in TOUR fails, and so does one that no longer stands there. What is
filled in for README's placeholders is in `Step.typed`; commands for a second machine run on loopback.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.cli.frame import build_parser
from tests.conftest import DEMO_MODEL, ROOT
from tests.readme import Command, read_commands, read_mentions
from tests.tour import Machines, Step

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text(encoding="utf-8")

LOOPBACK = "--listen /ip4/127.0.0.1/udp/0/quic-v1"

PEER = "/ip4/192.168.1.20/udp/4190/quic-v1/p2p/12D3Koo…"
UP = r"^page +http"
ANSWERS = "every expert is in reach"


def program(text: str) -> str:
    """What is typed to run a program of README against the asker."""
    text = text.replace("http://127.0.0.1:4190", "URL").replace("{", "{{").replace("}", "}}")
    return f"python <<'END'\n{text}\nEND".replace("URL", "{asker_url}").replace('"MODEL"', '"{stem}"')


CLIENT = """\
from openai import OpenAI
client = OpenAI(base_url="http://127.0.0.1:4190/v1", api_key="none")
client.chat.completions.create(model="MODEL", messages=[{"role": "user", "content": "Hello"}])"""

TOUR: dict[str, list[Step]] = {
    "Try it": [
        Step(
            "scripts/demo", elsewhere="tests/integration/test_commands.py::test_demo_prints_text_and_a_table"
        ),
        Step(
            "scripts/test", elsewhere="tests/integration/test_readme_tour.py::test_every_command_has_a_step"
        ),
    ],
    "Will my model work?": [
        Step("panal model inspect MODEL.gguf", "laptop", "panal model inspect {model}", "model id"),
        Step(
            "panal verify MODEL.gguf --servers 3",
            "laptop",
            "panal verify {model} --servers 3 --batch 1,5",
            "identical",
        ),
    ],
    "Two machines": [
        Step("panal init --serve MODEL.gguf:0-23", "server", f"panal init --serve {{model}}:0-3 {LOOPBACK}"),
        Step("panal run -c node.toml", "server", says=UP, stays=True),
        Step(
            f"panal init --model MODEL.gguf --peer {PEER}",
            "asker",
            f"panal init --model {{model}} --peer {{server_address}} {LOOPBACK}",
        ),
        Step(
            'panal generate -c node.toml -p "Once upon a time"',
            "asker",
            'panal generate -c node.toml -p "Once upon a time" -n 8',
        ),
        Step("panal run -c node.toml", "asker", says=ANSWERS, stays=True),
        Step("panal verify -c node.toml", "asker", says="identical"),
        Step(
            "panal slice cut MODEL.gguf --layers 24-47 --experts 0-63 -o slice.gguf",
            "server",
            "panal slice cut {model} --layers 2-3 --experts 0-5 -o slice.gguf",
        ),
        Step(
            "panal init --serve slice.gguf",
            "device",
            f"cp {{server}}/slice.gguf . && panal init --serve slice.gguf {LOOPBACK}",
        ),
        Step("panal init --dir DIR", "clone", "panal init --dir other"),
        Step("MODEL=node/demo/tiny-qwen2moe-12e2-shared.Q4_K_M.gguf", "clone", "MODEL={model}"),
        Step(
            "panal init --dir a --listen /ip4/127.0.0.1/udp/4191/quic-v1 --serve $MODEL",
            "clone",
            f"panal init --dir a {LOOPBACK} --serve $MODEL",
        ),
        Step("panal run -c a/node.toml", "clone", says=UP, stays=True),
        Step("MODEL=node/demo/tiny-qwen2moe-12e2-shared.Q4_K_M.gguf", "clone", "MODEL={model}"),
        Step(
            "panal init --dir b --model $MODEL --peer ADDRESS",
            "clone",
            "panal init --dir b --model $MODEL --peer {clone_address}",
        ),
        Step(
            'panal generate -c b/node.toml -p "import os"',
            "clone",
            'panal generate -c b/node.toml -p "import os" -n 8',
        ),
    ],
    "Talk to it": [
        Step(CLIENT, "asker", program(CLIENT)),
        Step("panal chat -c node.toml", "asker", "echo hello | panal chat -c node.toml -n 8", r"\w"),
    ],
    "Look at it": [
        Step("panal status -c node.toml", "asker", says="{asker_peer_id}"),
        Step("panal peers -c node.toml --watch", "asker", says="online", stays=True),
        Step("panal models -c node.toml", "asker", says="qwen2moe"),
    ],
    "A model from peers": [
        Step("panal model share MODEL.gguf -c node.toml", "server", "panal model share {model} -c node.toml"),
        Step(
            "panal model get MODEL -c node.toml",
            "fetcher",
            "panal init --peer {server_address} && panal model get {stem} -c node.toml",
        ),
        Step(
            "panal slice get MODEL --layers 0-11 -c node.toml",
            "fetcher",
            "panal slice get {stem} --layers 0-1 -c node.toml",
        ),
        Step("panal slice ls -c node.toml", "fetcher", says="complete"),
    ],
    "Your device stays yours": [
        Step("panal pause --for 2h -c node.toml", "server", says="paused"),
        Step("panal resume -c node.toml", "server"),
        Step(
            'panal init --serve MODEL.gguf --memory 6GiB --idle-only --schedule "mon-fri 22:00-07:00"',
            "own",
            'panal init --serve {model} --memory 6GiB --idle-only --schedule "mon-fri 22:00-07:00"',
        ),
        Step(
            "panal service install -c node.toml",
            "own",
            "panal service install --dry-run -c node.toml",
            '"run" "-c"',
        ),
        Step("panal doctor -c node.toml", "server", says="peer-1"),
    ],
    "Faster: fewer trips": [
        Step(
            "panal home plan MODEL.gguf --memory 4GiB --text my.txt",
            "home",
            "panal home plan {model} --memory 3MiB --text {text} --seconds 4",
            "trips",
        ),
        Step(
            "panal init --model MODEL.gguf --home-memory 4GiB",
            "home",
            "panal init --model {model} --home-memory 3MiB --peer {server_address}",
        ),
        Step(
            "panal home plan -c node.toml --text my.txt",
            "home",
            "panal home plan -c node.toml --text {text} --seconds 4",
            "trips",
        ),
        Step(
            "panal home plan MODEL.gguf -o plan.json",
            "server",
            "panal home plan {model} --seconds 4 -o plan.json",
        ),
        Step(
            "panal home use plan.json -c node.toml", "home", "panal home use {server}/plan.json -c node.toml"
        ),
        Step("panal home fetch -c node.toml", "home", says="complete"),
        Step(
            "panal verify -c node.toml --wire int8 --combine sum",
            "asker",
            "panal verify -c node.toml --wire f16 --combine sum",
        ),
        Step(
            "panal bench trips -c node.toml",
            "asker",
            "panal bench trips -c node.toml --prompts 1 --prompt-tokens 16 -n 8 --home 0 --draft off",
            "trips",
        ),
        Step(
            'panal generate -c node.toml -p "..." --stats',
            "asker",
            'panal generate -c node.toml -p "..." -n 8 --stats',
            "trips",
        ),
        Step(
            "panal generate -c node.toml --prompts FILE",
            "asker",
            "head -n 3 {text} > FILE && panal generate -c node.toml --prompts FILE -n 8",
        ),
        Step(
            "panal slice plan MODEL --device 8GiB --device 4GiB",
            "laptop",
            "panal slice plan {model} --device 8GiB --device 4GiB",
        ),
    ],
    "Behind routers and firewalls": [
        Step("panal netcheck -c node.toml", "asker"),
        Step("panal init --relay", "relay", f"panal init --relay {LOOPBACK}"),
        Step("panal run -c node.toml", "relay", says=UP, stays=True),
    ],
    "A swarm of your own": [
        Step("panal swarm create casa", "owner", says="swarm.key"),
        Step(
            "panal swarm invite 12D3Koo… --peer ADDRESS",
            "owner",
            "panal swarm invite {device_peer_id} --peer {server_address}",
        ),
        Step(
            "panal swarm join panal-invite:… -c node.toml",
            "device",
            "panal swarm join {owner_invite} -c node.toml",
            "casa",
        ),
    ],
}

TOUR["Credit"] = [
    Step(f"panal market {verb} -c node.toml", elsewhere=f"tests/integration/{test}")
    for verb, test in (
        ("quotes", "test_market_commands.py::test_a_running_node_tells_quotes_and_settles"),
        ("balance", "test_market_commands.py::test_balance_says_who_owes_whom"),
        ("audits", "test_market_commands.py::test_audits_are_shown_and_forgiven_while_no_node_runs"),
        ("advise", "test_advised_serving.py::test_what_the_command_says_of_it"),
    )
]

SECTIONS = list(dict.fromkeys(command.section for command in read_commands(README)))


def step_of(command: Command, taken: dict[str, int] | None = None) -> Step:
    """The step for a command; the next one of those for the same words, if they stand there several times."""
    known = [step for step in TOUR.get(command.section, []) if step.line == command.line]
    number = 0 if taken is None else taken.get(command.line, 0)
    assert number < len(known), (
        f"README.md:{command.number}: nothing runs `{command.line}`: add "
        f"Step({command.line!r}, MACHINE, WHAT IS TYPED) to TOUR[{command.section!r}] in {__name__}"
    )
    if taken is not None:
        taken[command.line] = number + 1
    return known[number]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("tour")
    text = folder / "my.txt"
    passage = "import os\n\n\ndef walk(top):\n    for name in sorted(os.listdir(top)):\n        yield name\n"
    text.write_text(passage * 20, encoding="utf-8")
    made = Machines(folder, {"model": str(DEMO_MODEL), "stem": DEMO_MODEL.stem, "text": str(text)})
    try:
        yield made
    finally:
        made.end()


def test_every_command_has_a_step() -> None:
    taken: dict[str, dict[str, int]] = {}
    for command in read_commands(README):
        step = step_of(command, taken.setdefault(command.section, {}))
        if step.elsewhere:
            file, _, name = step.elsewhere.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), step.elsewhere
        else:
            assert step.on, step
    for section, steps in TOUR.items():
        for step in steps:
            number = sum(each.line == step.line for each in steps)
            assert taken.get(section, {}).get(step.line, 0) == number, (
                f"README has no `{step.line}` under {section!r} any more: take its Step out of TOUR"
            )


def test_a_command_that_nothing_runs_is_named() -> None:
    text = "## Try it\n\n    panal demo -n 4  # quick\n\nor `panal frobnicate FILE`, not `panal verify`.\n"
    found = read_commands(text)
    assert [(each.line, each.number) for each in found] == [
        ("panal demo -n 4", 3),
        ("panal frobnicate FILE", 5),
    ]
    assert [each.line for each in read_mentions(text)] == ["panal verify"]
    with pytest.raises(AssertionError, match=r"README.md:5: nothing runs `panal frobnicate FILE`: add Step"):
        step_of(found[1])


@pytest.mark.parametrize("section", SECTIONS)
def test_the_tour(section: str, machines: Machines) -> None:
    taken: dict[str, int] = {}
    for command in read_commands(README):
        if command.section == section:
            step = step_of(command, taken)
            if not step.elsewhere:
                machines.do(step)


def test_commands_that_are_only_named_are_there() -> None:
    """ "`panal verify`" within a sentence: the command exists, and its flags do."""
    mentions = read_mentions(README)
    assert len(mentions) > 3
    for mention in mentions:
        parser: argparse.ArgumentParser = build_parser()
        for word in mention.line.split()[1:]:
            if word.startswith("--"):
                assert word in parser._option_string_actions, mention
                continue
            choices = [each.choices for each in parser._actions if each.choices and each.nargs == "A..."]
            known = dict(choices[0]) if choices else {}
            assert word in known, f"README.md:{mention.number} names `{mention.line}`, which is not there"
            parser = known[word]


def test_the_scripts_of_the_tour_can_be_started() -> None:
    for name in ("demo", "test", "dev"):
        script: Path = ROOT / "scripts" / name
        assert script.stat().st_mode & 0o111 and script.read_text().startswith("#!/usr/bin/env bash\n"), name
