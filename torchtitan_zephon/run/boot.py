"""The first lines of the loader's process, run as a script: who may end it, then where modules are.

What flows in: two file descriptors (the socket to the trainer, the shared memory) and the trainer's
process id, on the command line; over the socket ``sys.path``, then the ``Setup``. It is no module of
``multiprocessing``, which would import the trainer's main program, and torch with it.

Signals that reach a whole group or job (Ctrl-C, torchrun, a scheduler) are the trainer's to answer:
it may save a checkpoint first and need this process for that. When the trainer ends, in whatever
way, the socket closes; where a fork of the trainer holds it open, its process id tells.
"""

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_UP_S = 0.5


def main() -> None:
    """Serve the trainer until it ends."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # forbidden in some sandboxes
        # Not to push the trainer off its core at each batch taken: measured 0.7 ms, where no core is free.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    socket, memory, trainer = map(int, sys.argv[1:4])
    threading.Thread(target=_outlive_nobody, args=(trainer,), daemon=True).start()
    connection: Connection = Connection(socket)
    code = 0
    try:
        sys.path[:] = connection.recv()
        from torchtitan_zephon.run.child import serve

        serve(connection, memory)
    except (EOFError, ConnectionError):  # the trainer is gone
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # whatever other threads are in the middle of


def _outlive_nobody(trainer: int) -> None:
    while os.getppid() == trainer:
        time.sleep(_LOOK_UP_S)
    os._exit(0)


if __name__ == "__main__":
    main()
