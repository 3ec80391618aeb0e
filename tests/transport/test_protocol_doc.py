"""docs/protocol.md says what messages.py does: every kind, every field, every type, every limit."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from clusterenv.transport import messages as m
from clusterenv.transport.codec import FIRST_HEAD_KIND, HEADER, MAX_FRAMES
from clusterenv.transport.messages import KINDS, PROTOCOL_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
SECTIONS = {
    title: body for title, body in re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
RECORDS = (m.PolicyInfo, m.Episode, m.Rebuilt, m.SharedMemory, m.BatchMemory, m.Reference)
DEFAULTS = {"None": ", default nil", "''": ', default ""', "False": ", default false", "0": ", default 0"}
"""What the page says of a field's default, by its repr."""
SEED = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
WORDS: list[tuple[Any, str]] = [
    (m.Count, "count"),
    (m.Counts, "counts"),
    (m.Word, "word"),
    (m.Text, "text"),
    (m.Blocks, "blocks"),
    (SEED, "seed"),
    (int, "integer"),
    (Annotated[int, msgspec.Meta(ge=0)], "(integer from 0)"),
    (float, "number"),
    (bool, "bool"),
]


def in_words(annotation: Any) -> str:
    """The type as the page writes it."""
    for known, word in WORDS:
        if annotation == known:
            return word
    arguments = get_args(annotation)
    if isinstance(annotation, types.UnionType) or get_origin(annotation) is Union:
        others = [argument for argument in arguments if argument is not types.NoneType]
        return f"{in_words(others[0])} or nil"
    if get_origin(annotation) is Annotated:
        inner = arguments[0]
        if get_origin(inner) is dict:
            return " to ".join(["map of " + in_words(get_args(inner)[0]), in_words(get_args(inner)[1])])
        return f"list of at most {arguments[1].max_length} {in_words(get_args(inner)[0])}"
    return str(annotation.__name__)


def rows_of(record: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Name and type of each field, as the page should have them."""
    hints = get_type_hints(record, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(record):
        default = DEFAULTS.get(repr(field.default), "")
        rows.append((field.name, in_words(hints[field.name]) + default))
    return rows


def documented_rows(section: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", section, re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_documented_with_its_fields(kind: int) -> None:
    section = SECTIONS[f"{kind} {KINDS[kind].__name__}"]

    assert documented_rows(section) == rows_of(KINDS[kind])
    assert ("No fields." in section) == (rows_of(KINDS[kind]) == [])


@pytest.mark.parametrize("record", RECORDS)
def test_record_is_documented_with_its_fields(record: type[msgspec.Struct]) -> None:
    assert documented_rows(SECTIONS[record.__name__]) == rows_of(record)


def test_nothing_else_is_documented() -> None:
    kinds = [f"{kind} {message.__name__}" for kind, message in KINDS.items()]

    assert list(SECTIONS) == [*kinds, *(record.__name__ for record in RECORDS)]


def test_kinds_are_listed_under_the_side_that_sends_them() -> None:
    from_workers, from_head = PAGE.split("## Kinds from the head")

    for kind, message in KINDS.items():
        assert f"### {kind} {message.__name__}\n" in (from_head if kind >= FIRST_HEAD_KIND else from_workers)


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"Protocol version {PROTOCOL_VERSION}." in PAGE
    assert f"a header of {HEADER.size} bytes" in PAGE
    assert f"more than {MAX_FRAMES} frames" in PAGE
    for word, limit in [("word", m.Word), ("text", m.Text), ("counts", m.Counts), ("blocks", m.Blocks)]:
        most = re.search(rf"^\| {word} \| .*at most (\d+)(?:\^(\d+))?", PAGE, re.MULTILINE)
        assert most is not None
        assert int(most[1]) ** int(most[2] or 1) == get_args(limit)[1].max_length


def test_every_kind_has_its_own_number_on_its_side() -> None:
    assert len(set(KINDS.values())) == len(KINDS)
    assert set(m.Message.__subclasses__()) == set(KINDS.values())
