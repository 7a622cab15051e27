"""How a measurement ends that is not let finish: what a plain ``kill`` and a closed terminal do.

Owns the handlers of SIGTERM and SIGHUP. Law: both raise KeyboardInterrupt like Ctrl-C, so that servers are stopped on
the way out; a signal that is ignored stays so (``nohup``). Main thread.
"""

from __future__ import annotations

import signal


def end_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt from now on."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
