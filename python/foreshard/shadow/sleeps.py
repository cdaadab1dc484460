"""A script's sleep takes as long on the virtual clock as it says: of all that the host does beside CUDA, that alone is known."""

from __future__ import annotations

import functools
import threading
import time

from . import device


def begin() -> None:
    inner = time.sleep

    @functools.wraps(inner)
    def sleep(seconds):
        inner(seconds)
        if threading.current_thread() is threading.main_thread():  # one clock for all threads: others sleep beside it
            device.advance(seconds)

    time.sleep = sleep
