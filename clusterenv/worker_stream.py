"""A worker that streams: it makes one fragment after the other by itself, while there is room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from clusterenv.batches import Fragment, ResetBatch
from clusterenv.behaviour_policy import BehaviourPolicy, Run
from clusterenv.commands import Abandoned, Collect, GiveUp, News, Observe, SyncAt
from clusterenv.transport import messages as m


class WorkerStream:
    """Carries out one StreamCommand.

    Between two fragments it compares its policy with the newest that it was told of, and pulls if the rule
    asks for it.
    """

    def __init__(
        self,
        command: m.StreamCommand,
        policy: BehaviourPolicy,
        run: Run,
        tell: Callable[[News], None],
        send: Callable[[Fragment], None],
        end: Callable[[m.StreamEnded, ResetBatch], None],
    ) -> None:
        """Do nothing before `go_on`.

        Args:
            command: says how many steps a fragment has, and for how many there is room.
            policy: that acts.
            run: lets the runners work.
            tell: gives them news while they do.
            send: takes each fragment.
            end: takes the last answer, and the present observations.
        """
        self._num_steps = command.num_steps
        self._sync_at = cast("SyncAt", command.sync_at)
        self._room = command.room
        self._policy = policy
        self._run = run
        self._tell = tell
        self._send = send
        self._end = end
        self._newest = m.Published(version=command.version, reference=None, has_weights=False)
        self._frames: Sequence[Any] = ()
        self._busy = False
        self._collecting = False
        self._freshening = False
        self._stopped = False
        self._leaving = False
        self._abandoned = 0

    @property
    def busy(self) -> bool:
        """Whether a fragment is under way."""
        return self._busy

    def leave(self) -> None:
        """Begin no more fragments, since this process is about to end."""
        self._leaving = True

    def on_message(self, message: m.Message, frames: Sequence[Any]) -> None:
        """Take what the head sends to a worker that streams."""
        if isinstance(message, m.Published):
            self._newest, self._frames = message, frames
            self._freshen_meanwhile()
            return
        if isinstance(message, m.Room):
            self._room += message.fragments
        elif isinstance(message, m.StopStream):
            self._stopped = True
            if self._collecting:
                self._tell(GiveUp())
        self.go_on()

    def go_on(self) -> None:
        """Begin the next fragment, if none is under way and there is room for it; or end."""
        if self._busy:
            return
        if self._stopped:
            if self._freshening:
                return  # the answer to a pull belongs to this stream
            self._busy = True
            ended = m.StreamEnded(abandoned=self._abandoned)
            self._run(Observe(), lambda batch: self._end(ended, batch))
        elif self._room > 0 and not self._leaving:
            self._busy = True
            if self._freshening:
                self._collect()
            else:
                self._policy.freshen(self._newest, self._frames, self._collect)

    def _freshen_meanwhile(self) -> None:
        """Compare while runners collect, where they can change the policy on the way."""
        if self._sync_at == "fragment" or not self._collecting or self._freshening:
            return
        self._freshening = True
        newest = self._newest

        def freshened() -> None:
            self._freshening = False
            if self._newest is not newest:
                self._freshen_meanwhile()
            self.go_on()

        self._policy.freshen(newest, self._frames, freshened)

    def _collect(self) -> None:
        """The policy is fresh enough."""
        if self._stopped:
            self._busy = False
            self.go_on()
            return
        self._room -= 1
        self._collecting = True
        self._run(Collect(num_steps=self._num_steps, sync_at=self._sync_at), self._collected)

    def _collected(self, reply: Fragment | Abandoned) -> None:
        self._busy = self._collecting = False
        if isinstance(reply, Abandoned):
            self._abandoned += 1
        else:
            self._send(reply)
        self.go_on()
