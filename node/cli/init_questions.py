"""What `panal init` asks on a terminal: only what matters, each with an answer that Enter gives.

A wrong answer is told why, and asked again. Nothing is written before the last one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from routing.errors import LocalError

MAX_TRIES = 10
"""Wrong answers to one question before it is given up: something answers that does not read."""

SERVED_SHARE = 0.5
"""Of the memory that is free now, proposed for experts: the rest stays its owner's."""

MAX_SHOWN_MODELS = 8


@dataclass
class Answers:
    """What the node is to be.

    Attributes:
        serve, model: files or model ids as they were given; None: not that.
        memory: for what is served; None: all of the model.
        peers: addresses, as they are written into the config.
    """

    serve: str | None = None
    model: str | None = None
    memory: str | None = None
    home_memory: str | None = None
    relay: bool = False
    name: str | None = None
    idle_only: bool = False
    peers: list[str] = field(default_factory=list)


class Console(Protocol):
    """Whoever is asked."""

    def say(self, text: str) -> None:
        """Show a line."""

    def read(self, prompt: str) -> str:
        """An answer, without the line's end. EOFError: there will be none."""


class Terminal:
    """A person at a terminal. Tab completes names of files."""

    def __init__(self) -> None:
        try:
            import readline
        except ImportError:
            return
        readline.set_completer_delims("\n")
        readline.parse_and_bind("tab: complete")

    def say(self, text: str) -> None:
        print(text)

    def read(self, prompt: str) -> str:
        return input(prompt)


def ask(console: Console, config: Path, store: Path, *, overwrites: bool = False) -> Answers:
    """Ask everything.

    Args:
        config: the file that is to be written.
        store: where models known by their id are.
        overwrites: there is one already.

    Raises:
        LocalError: the answers ended, or made no sense for too long; nothing is written.
    """
    questions = _Questions(console)
    answers = Answers()
    if overwrites and not questions.yes(f"{config} is there already. Write it anew?", default=False):
        raise LocalError(f"{config}: left as it is")
    console.say(
        "What is this device to do? Enter takes what stands in brackets; Ctrl-C ends without a change."
    )
    role = questions.choose(
        [
            "compute experts for others (it needs a model file, or a slice of one)",
            "ask: run a model from here, with the help of others",
            "both",
            "relay: help others meet; needs an address that they can reach over TCP",
        ]
    )
    serves, asks, answers.relay = role in (0, 2), role in (1, 2), role == 3
    if serves or asks:
        model = _model(questions, config, store, serves=serves)
        answers.serve = model if serves else None
        answers.model = model if asks else None
    if serves:
        answers.memory = _memory(questions)
        answers.idle_only = questions.yes("Serve only while nobody else uses this device?", default=False)
    elif asks:
        questions.say("Experts computed here save waiting for others; panal home plan says how much.")
        answers.home_memory = questions.text("Memory for experts at home", "none", _size_or)
        if answers.home_memory == "none":
            answers.home_memory = None
    name = questions.text("Name of this node, as others see it", _host_name(), _name)
    answers.name = name or None
    answers.peers = _peers(questions)
    return answers


class _Questions:
    """Asks until an answer makes sense."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, *lines: str) -> None:
        """Show lines."""
        for line in lines:
            self._console.say(line)

    def text(self, question: str, default: str, check: Callable[[str], str]) -> str:
        """An answer as `check` gives it back; its LocalError is shown, and the question asked again."""
        shown = f" [{default}]" if default else ""
        for _ in range(MAX_TRIES):
            try:
                said = self._console.read(f"{question}{shown}: ").strip()
            except EOFError:
                raise LocalError("the answers ended; nothing is written") from None
            try:
                return check(said or default)
            except LocalError as error:
                self._console.say(f"  {error}")
        raise LocalError(f"no usable answer to {question!r}; nothing is written")

    def yes(self, question: str, *, default: bool) -> bool:
        """Yes or no."""

        def check(said: str) -> str:
            if said.lower() not in ("y", "yes", "n", "no"):
                raise LocalError("y or n")
            return said.lower()[0]

        return self.text(question, "y" if default else "n", check) == "y"

    def choose(self, options: Sequence[str]) -> int:
        """The number of an option, from 0 on; the first one by default."""
        for number, option in enumerate(options, 1):
            self._console.say(f"  {number}  {option}")

        def check(said: str) -> str:
            if said not in map(str, range(1, len(options) + 1)):
                raise LocalError(f"a number from 1 to {len(options)}")
            return said

        return int(self.text("Which", "1", check)) - 1


def _model(questions: _Questions, config: Path, store: Path, *, serves: bool) -> str:
    from node.cli.init import model_from
    from node.cli.stored_models import stored_models
    from node.config import parse_config, render_config
    from node.config.models import check_models
    from node.config.shape import ServeTable
    from node.model.store import SHORT_ID, Store
    from node.sizes import size_text

    known = Store(store)
    here = [each for each in stored_models(store) if not each["problem"]][:MAX_SHOWN_MODELS]

    def check(said: str) -> str:
        if not said:
            number = "the number of a model that is here, or " if here else ""
            raise LocalError(f"{number}a GGUF file (Tab completes its name); Ctrl-C ends without a change")
        if said.isdigit() and 0 < int(said) <= len(here):
            said = here[int(said) - 1]["id"]
        text = str(Path(said).expanduser()) if said.startswith("~") else said
        named = model_from(text, config)
        rendered = render_config(serve=[ServeTable(model=named)]) if serves else render_config(model=named)
        parsed = parse_config(rendered, config, store)
        check_models(parsed)
        ref = parsed.serve[0].model if serves else parsed.require_backbone().model
        if ref.model_id is not None:
            known.get(ref.model_id)
        return text

    if here:
        questions.say("Models that are here (their number, or any other file):")
        for number, each in enumerate(here, 1):
            experts = (
                f"{each['experts']} experts in {each['layers']} layers, {size_text(each['expert_bytes'])}"
            )
            questions.say(f"  {number}  {each['name'] or '-'} ({each['id'][:SHORT_ID]}): {experts}")
    else:
        questions.say(
            "No model is here yet: give its file, or first fetch one from peers by panal model get."
        )
    return questions.text("Model", "", check)


def _memory(questions: _Questions) -> str | None:
    free = _free_memory()
    default = "all of the model"
    if free:
        from node.sizes import size_text

        default = size_text(int(free * SERVED_SHARE))
        questions.say(
            f"{size_text(free)} of memory are free now. Within what you give, the node chooses by itself "
            "which experts it serves: those that the swarm lacks most."
        )
    said = questions.text("Memory for experts, or all of them", default, _size_or)
    return None if said.startswith("all") else said


def _size_or(said: str) -> str:
    from node.sizes import MemoryBudget

    if said in ("none", "all", "all of the model"):
        return said
    MemoryBudget.parse(said)
    return said


def _name(said: str) -> str:
    from node.config.shape import MAX_NAME_CHARS

    if len(said) > MAX_NAME_CHARS or not said.isprintable():
        raise LocalError(f"at most {MAX_NAME_CHARS} characters, all of them printable")
    return said


def _peers(questions: _Questions) -> list[str]:
    from node.cli.init import peer_address

    def check(said: str) -> str:
        if said.startswith("panal-invite:"):
            raise LocalError(
                "an invitation is for later: panal swarm join INVITATION, once this node has its id"
            )
        return " ".join(peer_address(each) for each in said.replace(",", " ").split())

    questions.say("Nodes of one network find each other. For any other swarm one address of it is needed.")
    said = questions.text("Address, as panal run prints it elsewhere (Enter: none)", "", check)
    return said.split()


def _host_name() -> str:
    from node.config.shape import MAX_NAME_CHARS

    name = socket.gethostname().split(".")[0][:MAX_NAME_CHARS]
    return name if name.isprintable() else ""


def _free_memory() -> int:
    """Bytes; 0 if the system does not tell."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        line = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) << 10
    except (OSError, StopIteration, ValueError, IndexError):
        return 0
