"""Calls into the environments of a shard by name, and attributes set by name."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle

from clusterenv import values
from clusterenv.commands import Call, CallBatch, SetAttr
from clusterenv.env_calls import ENV_ERRORS
from clusterenv.errors import EnvError, MissingAttribute, say
from clusterenv.shard import Shard
from clusterenv.vector_shard import VectorShard


def call(shard: Shard | VectorShard, command: Call) -> CallBatch:
    """What the method or attribute gave in each environment asked, outermost wrapper first.

    An environment that raises needs no reset for it.

    Raises:
        MissingAttribute: if an environment has none of that name.
        EnvError: if an environment raises, or gives what does not travel; those before it were called.
            Or if the arguments cannot be unpickled here; none was called.
    """
    args, kwargs = _arguments(command)
    if isinstance(shard, VectorShard):
        given = shard.call(command.name, args, kwargs, command.mask)
        encoded = [_encoded(shard, row, command.name, result) for row, result in enumerate(given)]
        return CallBatch(results=encoded)
    results = []
    for row in shard.rows_of(command.mask):
        shard.count_call()
        shard.checks.put_back(row)
        result = _call_one(shard, row, command.name, args, kwargs)
        results.append(_encoded(shard, row, command.name, result))
    return CallBatch(results=results)


def set_attr(shard: Shard | VectorShard, command: SetAttr) -> None:
    """The attribute is set in each environment asked, in the wrapper that has it.

    Raises:
        EnvError: if an environment raises; it is set in those before it.
    """
    if isinstance(shard, VectorShard):
        shard.set_attr(command.name, [cloudpickle.loads(blob) for blob in command.values], command.mask)
        return
    rows = shard.rows_of(command.mask)
    blobs = command.values * len(rows) if len(command.values) == 1 else command.values
    for row, blob in zip(rows, blobs, strict=True):
        shard.count_call()
        shard.checks.put_back(row)
        try:
            shard.envs[row].set_wrapper_attr(command.name, cloudpickle.loads(blob))
        except ENV_ERRORS as error:
            raise _failure(EnvError, shard, row, f"when {command.name!r} was set", error) from error


def _encoded(shard: Shard | VectorShard, row: int, name: str, result: object) -> bytes:
    try:
        return values.encode(result)
    except values.UnsupportedValue as unsupported:
        where = shard.name if isinstance(shard, VectorShard) else shard.name_of(row)
        raise EnvError(
            f"{where}: what {name!r} gave cannot be sent to the head: "
            f"{unsupported}; arrays, text, numbers, None, and tuples, lists and dicts of them do",
            env_index=shard.first_env + row,
        ) from unsupported


def _arguments(command: Call) -> tuple[Sequence[object], Mapping[str, Any]]:
    try:
        args, kwargs = cloudpickle.loads(command.arguments)
    except ENV_ERRORS as error:
        raise EnvError(
            f"the arguments of {command.name!r} cannot be unpickled on the worker: {say(error)}",
            remote_traceback="".join(traceback.format_exception(error)),
        ) from error
    return args, kwargs


def _call_one(shard: Shard, row: int, name: str, args: Sequence[object], kwargs: Mapping[str, Any]) -> object:
    try:
        attribute = shard.envs[row].get_wrapper_attr(name)
    except AttributeError as error:
        raise _failure(MissingAttribute, shard, row, f"when asked for {name!r}", error) from error
    except ENV_ERRORS as error:
        raise _failure(EnvError, shard, row, f"when asked for {name!r}", error) from error
    if not callable(attribute):
        return attribute
    try:
        return attribute(*args, **kwargs)
    except ENV_ERRORS as error:
        raise _failure(EnvError, shard, row, f"in {name!r}", error) from error


def _failure(kind: type[EnvError], shard: Shard, row: int, doing: str, error: BaseException) -> EnvError:
    return kind(
        f"{shard.name_of(row)} failed {doing}: {say(error)}",
        env_index=shard.first_env + row,
        remote_traceback="".join(traceback.format_exception(error)),
    )
