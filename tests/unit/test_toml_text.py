"""Setting keys in a file that a person keeps: what was there stays, byte for byte."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.toml_text import quote, set_keys
from routing.errors import LocalError


def lines_lost(before: str, after: str) -> list[str]:
    kept = after.splitlines()
    return [line for line in before.splitlines() if line not in kept]


FULL = """\
# mine
name = "kitchen"   # a comment with [swarm] and name = "x"
text = \"\"\"
[swarm]
name = "not this"
\"\"\"

[swarm] # here
# where
listen = "/ip4/0.0.0.0/udp/4190/quic-v1"
peers = [
    "a", # the first
    # nobody
    "b"  # no comma
]
  name   =   'old'    # of old

[engine]
name = "not this either"
[[serve]]
model = "x"
"""


def test_everything_else_stays() -> None:
    after = set_keys(FULL, "swarm", {"name": "casa", "key": "00ff", "peers": ["a", "b", "c"]})
    assert tomllib.loads(after)["swarm"] == {
        "listen": "/ip4/0.0.0.0/udp/4190/quic-v1",
        "peers": ["a", "b", "c"],
        "name": "casa",
        "key": "00ff",
    }
    assert lines_lost(FULL, after) == ['    "b"  # no comma', "  name   =   'old'    # of old"]
    assert '  name   =   "casa"    # of old\n' in after
    assert '    "b",  # no comma\n    "c",\n]\n' in after
    assert '[swarm] # here\nkey = "00ff"\n# where\n' in after


def test_a_table_that_is_missing_is_added() -> None:
    for text in ("", "a = 1\n", "a = 1", "# nothing\n", '[engine]\nx = """\n[swarm]\n"""\n'):
        after = set_keys(text, "swarm", {"name": "casa", "key": "k"})
        assert after.startswith(text)
        assert tomllib.loads(after) == tomllib.loads(text) | {"swarm": {"name": "casa", "key": "k"}}
        assert after.index("name") < after.index("key = ")


@pytest.mark.parametrize(
    "text", ["[swarm]", "[swarm]\n", "[ swarm ]\n", "[swarm]\r\n[engine]\r\nthreads = 2\r\n"]
)
def test_an_empty_table(text: str) -> None:
    after = set_keys(text, "swarm", {"name": "casa"})
    assert tomllib.loads(after)["swarm"] == {"name": "casa"}
    if "\r" in text:
        assert after.count("\n") == after.count("\r\n")


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        ("[]", '["a"]'),
        ("[ ]", '["a"]'),
        ("[ # none\n]", '["a"]'),
        ('["x"]', '["x", "a"]'),
        ('["x",]', '["x", "a"]'),
        ("['x']", "['x', \"a\"]"),
        ('[\n  "x"\n]', '[\n  "x",\n    "a",\n]'),
        ('[\n"x", # last\n# end\n]', '[\n"x", # last\n# end\n    "a",\n]'),
        ('["]", "#",\n]', '["]", "#",\n    "a",\n]'),
    ],
)
def test_lists_keep_their_form(array: str, expected: str) -> None:
    text = f"[swarm]\npeers = {array} # list\n"
    items = tomllib.loads(text)["swarm"]["peers"]
    assert set_keys(text, "swarm", {"peers": [*items, "a"]}) == f"[swarm]\npeers = {expected} # list\n"


def test_a_list_that_loses_items_is_written_anew() -> None:
    text = '[swarm]\npeers = [\n"a", # first\n"b" ]\nx = 1\n'
    assert set_keys(text, "swarm", {"peers": ["b"]}) == '[swarm]\npeers = ["b"]\nx = 1\n'
    assert set_keys(text, "swarm", {"peers": ["a", "b"]}) == text


@pytest.mark.parametrize(
    "text",
    ['swarm = { name = "x" }\n', 'swarm.name = "x"\n', '["swarm"]\nname = "x"\n', '[swarm]\n"name" = "x"\n'],
)
def test_what_is_written_in_another_way_is_left_to_its_owner(text: str) -> None:
    with pytest.raises(LocalError, match=r'set by hand: name = "casa"; key = "k"') as error:
        set_keys(text, "swarm", {"name": "casa", "key": "k"})
    assert len(str(error.value).splitlines()) == 1


toml_values = st.recursive(
    st.integers(-99, 99) | st.booleans() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def render(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, list):
        return "[" + ", # c ]\n".join(map(render, value)) + "\n]"
    return str(value)


@given(
    st.dictionaries(st.sampled_from("abcde"), toml_values, max_size=4),
    st.dictionaries(st.sampled_from(["name", "x", "y"]), toml_values, max_size=3),
    st.text(max_size=10),
    st.lists(st.text(max_size=5), max_size=3),
    st.sampled_from(["", " # [swarm]", "   "]),
)
def test_any_simple_file(
    top: dict[str, object], table: dict[str, object], name: str, peers: list[str], tail: str
) -> None:
    text = "".join(f"{key} = {render(value)}{tail}\n" for key, value in top.items())
    text += f"[swarm]{tail}\n" + "".join(f"{key}={render(value)}{tail}\n" for key, value in table.items())
    text += f"[[serve]]{tail}\nname = 1\n"
    after = set_keys(text, "swarm", {"name": name, "peers": peers})
    assert tomllib.loads(after) == tomllib.loads(text) | {"swarm": table | {"name": name, "peers": peers}}
