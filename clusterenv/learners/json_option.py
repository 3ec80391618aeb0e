"""An option of the command line that is a JSON object, such as the arguments of an environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from tyro.constructors import PrimitiveConstructorSpec


def json_object(text: str) -> dict[str, Any]:
    """The object that `text` describes.

    Raises:
        ValueError: if it describes none.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    raise ValueError(f"{text} is no JSON object, such as '{{\"length\": 5}}'")


def is_json(value: object) -> bool:
    """Whether it is an object that JSON can hold, as files of a run need."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, Mapping)


_SPEC: PrimitiveConstructorSpec[dict[str, Any]] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda words: json_object(words[0]),
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [json.dumps(value)],
)

JsonObject: TypeAlias = Annotated[dict[str, Any], _SPEC]
