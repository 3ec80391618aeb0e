"""How processes of one machine share its cores."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

YIELDING: Final = 5
"""Niceness of those that give way: a third of the share of one that does not."""
AUTOGROUP: Final = Path("/proc/self/autogroup")
TRIES, PAUSE_S = 50, 0.1


def give_way() -> None:
    """This process, those of its group and what they will start run where others leave the processor free.

    It cannot be taken back without privileges.
    """
    with suppress(OSError):  # some of the group may be another user's
        os.setpriority(os.PRIO_PGRP, 0, max(YIELDING, os.getpriority(os.PRIO_PROCESS, 0)))
    if os.getsid(0) == os.getpid() and AUTOGROUP.exists():
        threading.Thread(target=_let_session_give_way, name="clusterenv-priority", daemon=True).start()


def _let_session_give_way() -> None:
    """Linux with autogroups shares cores among sessions first: niceness does not count between them.

    The kernel takes one change in a tenth of a second from all unprivileged processes together.
    """
    for _ in range(TRIES):
        try:
            AUTOGROUP.write_text(str(YIELDING), encoding="ascii")
        except BlockingIOError:
            time.sleep(PAUSE_S)
        except OSError:
            return
        else:
            return
