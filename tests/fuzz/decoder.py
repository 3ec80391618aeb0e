"""Coverage-guided fuzzing of all that a head makes of bytes: `python -m tests.fuzz.decoder --runs 10000000`.

Needs `pip install atheris`, which has wheels for Python 3.11 on Linux. It starts from a message of each kind.
Findings are files of the working folder; other options of libFuzzer, such as `-max_total_time=60`, may
follow. Any error but ProtocolError is a finding.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found]  # not among the packages that tests need
import msgspec
import numpy as np
from gymnasium import spaces

with atheris.instrument_imports(include=["clusterenv"]):
    from clusterenv import values
    from clusterenv.batches import ActBatch, Fragment, FrameReader, ResetBatch, StepBatch
    from clusterenv.errors import ProtocolError
    from clusterenv.infos import batch_infos, decode_infos
    from clusterenv.layout import SpaceLayout
    from clusterenv.transport import messages as m
    from clusterenv.transport.codec import FIRST_HEAD_KIND, HEADER, MAGIC, Side, decode

from tests.transport.samples import SAMPLES  # after what is instrumented

RUN_ID = 7
ENVS = 2
OBS = SpaceLayout.of(
    spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Text(4), c=spaces.Discrete(3))
)
ACTIONS = SpaceLayout.of(spaces.Discrete(2))


def one_input(data: bytes) -> None:
    """Decode `data`: kind, number of frames, their lengths, frames, body; then read what it holds."""
    kind, count = (data[0], data[1] % 24) if len(data) > 1 else (0, 0)
    lengths, rest = data[2 : 2 + count], data[2 + count :]
    frames = []
    for length in lengths:
        frames.append(rest[:length])
        rest = rest[length:]
    header, body = HEADER.pack(MAGIC, m.PROTOCOL_VERSION, kind, RUN_ID, 0, 1), rest
    try:
        parts = [memoryview(header + body), *map(memoryview, frames)]
        envelope = decode(parts, sender=Side.WORKER, run_id=RUN_ID, max_message_bytes=1 << 20)
        _read(envelope.message, envelope.frames)
    except ProtocolError:
        pass
    for part in (body, *frames):
        try:
            values.decode(part)
            batch_infos(decode_infos(part), ENVS)
        except ProtocolError:
            pass


def _read(message: m.Message, frames: list[memoryview]) -> None:
    """What the head does with an answer."""
    if isinstance(message, m.ResetReply):
        ResetBatch.of_frames(frames, OBS, num_envs=ENVS, infos=message.infos)
        for block in message.infos:
            batch_infos(decode_infos(block), ENVS)
    elif isinstance(message, m.StepReply):
        StepBatch.read(FrameReader(frames), OBS, ENVS, message.num_final)
    elif isinstance(message, m.ActReply):
        version = message.policy.policy_version
        ActBatch.of_frames(
            frames, OBS, ACTIONS, num_envs=ENVS, num_final=message.num_final, policy_version=version
        )
    elif isinstance(message, m.FragmentReply):
        Fragment.of_frames(
            frames,
            OBS,
            ACTIONS,
            num_steps=message.num_steps,
            num_envs=ENVS,
            num_final=message.num_final,
            policy_version=0,
            episodes=[],
            has_versions=message.has_versions,
        )


def examples() -> list[bytes]:
    """A message of each kind that a worker sends, and answers that fit the spaces here."""
    observed = [*OBS.zeros(ENVS)]
    rows = [np.zeros(ENVS), np.zeros(ENVS, np.bool_), np.zeros(ENVS, np.bool_), np.zeros(0, np.int64)]
    step = StepBatch(
        obs=observed,
        rewards=rows[0],
        terminations=rows[1],
        truncations=rows[2],
        final_index=rows[3],
        final_obs=OBS.empty(0),
    ).frames()
    fitting = {m.ResetReply: ResetBatch(obs=observed).frames(), m.StepReply: step}
    made = []
    for kind, message_type in m.KINDS.items():
        if kind < FIRST_HEAD_KIND and message_type in SAMPLES:
            message, frames = SAMPLES[message_type]
            for sent in (frames, fitting.get(message_type, [])):
                raw = [each.tobytes() if isinstance(each, np.ndarray) else bytes(each) for each in sent]
                body = msgspec.msgpack.encode(message)
                made.append(bytes([kind, len(raw), *map(len, raw)]) + b"".join(raw) + body)
    return made


def main() -> None:
    """Fuzz until the number of inputs is reached."""
    words = list(sys.argv)
    runs = "10000000"
    if "--runs" in words:
        at = words.index("--runs")
        runs, words[at : at + 2] = words[at + 1], []
    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
    for number, example in enumerate(examples()):
        (corpus / str(number)).write_bytes(example)
    atheris.Setup([*words, f"-runs={runs}", str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
