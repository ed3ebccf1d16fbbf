"""The one lock on a file, which the operating system frees when its holder dies.

It is `flock` on an open file and not the library filelock, because a file system may know no locks (Lustre, NFS without a lock
daemon): there filelock waits until its time is up, and here the caller is told and does what is safe without. The fence's lock
also lies on the very file that says who the owner is (`store.fence`). Who writes which cells is a question between machines, and
is asked by claims that are renewed (`session.suite.lock`), not by a lock.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Callable

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


def lock(file: int, patience: float, look: float = 0.02, waiting: Callable[[], None] = lambda: None) -> bool:
    """Lock an open file for this process alone, until it is closed. Returns whether its file system knows locks.

    patience: seconds that another holder is waited for; look: between two looks, after each of which `waiting` is called.

    Raises
    ------
    TimeoutError
        The holder does not let go.
    OSError
        The file cannot be locked.
    """
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(errno.ETIMEDOUT, f"locked by another process for over {patience:.0f} s") from None
            waiting()
            time.sleep(min(look, left))
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
        else:
            return True
