"""SEE's mailboxes in a Ray actor."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from harness.engines.openrlhf.see_actor import NAME, RayTransport
from harness.errors import EngineError

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(180)]


@pytest.fixture
def transport():
    transport = RayTransport(["a", "b", "c"], deadline=8.0, max_bytes=100)
    yield transport
    transport.close()
    transport.close()


def test_messages_arrive_in_order_and_once(transport):
    transport.send("a", "b", 1, [b"one", b"two"])
    transport.send("c", "b", 1, [b"three"])
    transport.send("a", "b", 2, [b"four"])
    found = transport.receive("b", 5.0)
    assert [(d.sender, d.step, d.messages) for d in found if d.sender == "a"] == [
        ("a", 1, (b"one", b"two")),
        ("a", 2, (b"four",)),
    ]
    assert [d.messages for d in found if d.sender == "c"] == [(b"three",)]
    assert transport.receive("b", 0.0) == []
    assert transport.receive("a", 0.0) == []


def test_a_waiting_receiver_does_not_block_senders(transport):
    found = []
    waiting = threading.Thread(target=lambda: found.extend(transport.receive("b", 30.0)))
    waiting.start()
    time.sleep(0.5)
    transport.send("a", "b", 1, [b"late"])
    waiting.join(timeout=15)
    assert [d.messages for d in found] == [(b"late",)]


@pytest.mark.parametrize(
    ("sent", "words"), [(signal.SIGKILL, "died|is dead"), (signal.SIGSTOP, "hangs|no sign of life")]
)
def test_a_dead_or_stopped_actor_is_named_within_the_deadline(sent, words):
    transport = RayTransport(["a", "b"], deadline=8.0)
    process = transport._processes[0].pid
    os.kill(process, sent)
    started = time.monotonic()
    with pytest.raises(EngineError, match=f"{NAME}.*({words})"):
        transport.receive("a", 1.0)
    assert time.monotonic() - started < 8.0 + 1.0 + 10.0
    transport.close()
    assert not _running(process)


def _running(pid):
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
