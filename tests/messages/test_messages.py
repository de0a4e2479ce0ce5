"""Messages between processes: what is said is heard, and anything else is refused."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.messages import case_messages, is_token, jobs, new_token
from harness.messages.framing import Lines, Packets, decode, encode, send_packets
from harness.messages.typed import Message, MessageError, Vocabulary, as_data
from harness.model.outcome import Kind

FUZZED = settings(derandomize=True, database=None, max_examples=200)
TEXT = st.text(max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
EVERY = [
    case_messages.RunItem(0, None),
    case_messages.RunItem(0, 1),
    case_messages.ListTests(),
    case_messages.Taken(),
    case_messages.PhaseReported({"outcome": "passed", "sections": [["out", "text"]]}),
    case_messages.Warned("UserWarning", "text", "file.py", 1, "runtest", "file.py::test"),
    case_messages.ItemDone(
        {"call": 0.5}, interrupted=False, exit_reason=None, exit_code=None, used=["read /a"]
    ),
    case_messages.ItemDone({}, interrupted=True, exit_reason="enough", exit_code=3, used=[]),
    case_messages.TestsListed("text", ["jax"]),
    case_messages.NotListed("text", skipped=True),
    jobs.Hello("token", 1, "about"),
    jobs.Welcome(),
    jobs.Refused(),
    jobs.At(1),
    jobs.Left(1),
    jobs.Go(1),
    jobs.No(1, "why", Kind.HUNG),
    jobs.Late(1),
    jobs.WorkerLost("why"),
    jobs.Stop("why"),
    jobs.Value(1, [1, {"a": None}], None),
    jobs.Value(1, None, "Traceback"),
    jobs.All(),
]
ALL = Vocabulary(*{type(message) for message in EVERY})


def test_each_message_is_in_the_list() -> None:
    cases = (case_messages.COMMANDS, case_messages.ANSWERS)
    known = {kind for v in (*cases, jobs.TO_FIRST, jobs.FROM_FIRST) for kind in v._kinds.values()}
    assert known == {type(message) for message in EVERY}


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_what_is_written_is_read(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert ALL.read(decode(line)) == message


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_what_is_malformed_is_refused(message: Message) -> None:
    data = as_data(message)
    names = [field.name for field in fields(message)]
    wrong = [data | {"more": 1}, data | {"type": "Gone"}, data | {"type": ["At"]}, [data]]
    wrong += [{key: value for key, value in data.items() if key != name} for name in names]
    wrong += [data | {name: object()} for name in names if name != "value"]
    wrong += [data | {name: True} for name in names if type(data[name]) is int]
    wrong += [data | {name: "1"} for name in names if type(data[name]) in (int, bool, float, dict)]
    wrong += [data | {name: 1} for name in names if type(data[name]) in (str, bool, Kind)]
    for each in wrong:
        with pytest.raises(MessageError):
            ALL.read(each)
    assert ALL.read(data) == message


def test_each_side_of_a_conversation_has_its_own_words() -> None:
    for message, vocabulary in (
        (jobs.Go(1), jobs.TO_FIRST),
        (jobs.At(1), jobs.FROM_FIRST),
        (case_messages.Taken(), case_messages.ANSWERS),
        (case_messages.TestsListed("", []), case_messages.COMMANDS),
    ):
        with pytest.raises(MessageError, match="expected one of"):
            vocabulary.read(as_data(message))


@FUZZED
@given(data=st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_a_line_is_a_message_or_refused(data: bytes) -> None:
    lines = Lines(ALL, 1 << 10)
    lines.feed(data + b"\n")
    with suppress(MessageError):
        assert all(isinstance(message, Message) for message in lines.messages())


@FUZZED
@given(values=st.lists(VALUES, max_size=5), cut=st.integers(1, 50))
def test_what_is_said_is_heard_however_it_is_cut(values: list[object], cut: int) -> None:
    messages = [jobs.Value(0, value, None) for value in values]
    data = b"".join(map(encode, messages))
    lines = Lines(ALL, 1 << 20)
    heard: list[Message] = []
    for at in range(0, len(data), cut):
        lines.feed(data[at : at + cut])
        heard += lines.messages()
    assert heard == messages


BOUNDS = {
    "deep": b'{"a":' * 65 + b"1" + b"}" * 65,
    "long": b'{"a": ' + b"1" * 1001 + b"}",
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_of_a_line(name: str) -> None:
    with pytest.raises(MessageError):
        decode(BOUNDS[name])
    inside = json.dumps({"a": BOUNDS[name].decode()}).encode()  # text is text
    assert decode(inside) == {"a": BOUNDS[name].decode()}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_over_the_limit_is_refused_before_it_ends(end: bytes) -> None:
    lines = Lines(ALL, 10)
    lines.feed(b"1" * 11 + end)
    with pytest.raises(MessageError, match="at most 10 bytes"):
        next(lines.messages())


def packets_of(token: bytes, message: Message) -> list[bytes]:
    """The packets of one message, as a socket would keep them apart."""
    packets: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda _, data: packets.append(bytes(data)))
        send_packets(0, token, message)
    return packets


def test_packets_are_joined_to_messages_and_strays_are_counted() -> None:
    token = new_token().encode()
    long = case_messages.TestsListed("a" * 100_000, [])
    parts = packets_of(token, long)
    assert len(parts) > 3
    packets = Packets(token, case_messages.ANSWERS)
    stray = [b"", b"stray", b"0" * len(token) + parts[0][len(token) :], parts[0][:-1], token]
    for part in parts[:-1]:
        assert [packets.feed(other) for other in stray] == [None] * len(stray)
        assert packets.feed(part) is None
    assert packets.feed(parts[-1]) == long
    assert packets.stray == sum(map(len, stray)) * (len(parts) - 1)


@pytest.mark.parametrize("message", [case_messages.Taken(), jobs.All()], ids=["command", "other"])
def test_a_packet_with_the_token_that_is_no_answer_is_stray(message: Message) -> None:
    token = new_token().encode()
    packets = Packets(token, case_messages.ANSWERS)
    (part,) = packets_of(token, message)
    assert packets.feed(part) is None
    assert packets.stray == len(encode(message))
    (part,) = packets_of(token, case_messages.TestsListed("x", []))
    assert packets.feed(part) == case_messages.TestsListed("x", [])


def test_what_json_can_not_say_is_told_by_its_repr() -> None:
    token = new_token().encode()
    (part,) = packets_of(token, case_messages.PhaseReported({"user_properties": [["a", {1, 2}]]}))
    heard = Packets(token, case_messages.ANSWERS).feed(part)
    assert heard == case_messages.PhaseReported({"user_properties": [["a", "{1, 2}"]]})
    with pytest.raises(TypeError):
        encode(jobs.Value(0, {1, 2}, None))


def test_tokens() -> None:
    token, other = new_token(), new_token()
    assert token != other
    assert is_token(token, token)
    for given_ in (other, token[:-1], "", "\ud800"):
        assert not is_token(given_, token)
