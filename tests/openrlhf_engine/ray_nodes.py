"""Nodes of Ray clusters as `ray start` makes them, which do not outlive their block."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import ray


@contextmanager
def node(*arguments, before=""):
    """A node, in mounts of its own where `before` changes them."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", *arguments]
    command = ["unshare", "--mount", "sh", "-ec", f'{before}\nexec "$@"', "sh", *start] if before else start
    process = subprocess.Popen(
        command, start_new_session=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def head():
    """The first node of a cluster: its address, at which it soon answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with node("--head", f"--port={port}", "--include-dashboard=false"):
        yield f"{ray.util.get_node_ip_address()}:{port}"
