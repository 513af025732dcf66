"""`k3agent serve --engine vllm` with a real vLLM on a CPU, and its own reader of flags for the large models.

Needs what test_vllm_parsers.py needs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from k3agent.backend.cli import parser
from k3agent.backend.handover import vllm
from k3agent.backend.handover.command import ask, free_port, installed_version
from k3agent.backend.handover.hardware import parse
from k3agent.tui.served import look

VARIABLE = "K3AGENT_VLLM_PYTHON"
HERE = Path(__file__).parent
LONG_S = 600.0
READ_FLAGS = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())
for command in json.load(sys.stdin):
    words = command[2:]
    words = [word for word in words if word != "--headless"]
    parser.parse_args(["--model", *words])
print("all read")
"""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"{VARIABLE} is not set: see docs/guide/other-models.md")
    return found


def in_vllm(python: str, *words: str, **more: str) -> str:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    ran = subprocess.run(
        [python, *words], capture_output=True, text=True, timeout=LONG_S, env=environ, check=False, **more
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.mark.parametrize(
    "words",
    [
        "--model k3 --gpus 8xB300 --draft --host-cache-bytes 64G --cache-dtype fp8 --text-only",
        "--model k3 --gpus 16xH200 --master 10.0.0.1 --split decode",
        "--model k3 --gpus 16xB200 --master 10.0.0.1 --split prefill --connector mooncake",
        "--model kimi-linear --gpus 4xH200 --served-name kl",
    ],
)
def test_vllm_reads_every_flag(python: str, words: str) -> None:
    args = parser().parse_args(words.split())
    launch = vllm.launch(ask(args, [], parse(args.gpus)), installed_version(python), ["vllm", "serve"])
    assert "all read" in in_vllm(python, "-c", READ_FLAGS, input=json.dumps(launch.commands))


@pytest.fixture(scope="module")
def model(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / "model"
    make = "import sys; sys.path.insert(0, sys.argv[1]); import vllm_planned, pathlib;"
    make += "vllm_planned.make_model(pathlib.Path(sys.argv[2]), [sys.argv[3]])"
    in_vllm(python, "-c", make, str(HERE), str(folder), str(HERE.parents[2] / "README.md"))
    return folder


@pytest.fixture
def serving(python: str, model: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environ = os.environ | {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1",
        "XDG_STATE_HOME": str(tmp_path), "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "k3agent.backend.cli", "--engine", "vllm", "--python", python]
    command += ["--model", str(model), "--served-name", "small", "--tool-parser", "kimi_k3"]
    command += ["--port", str(free_port("127.0.0.1")), "--api-key", "k-1"]
    command += ["--state-file", str(tmp_path / "state.json"), "--", "--load-format", "dummy"]
    command += ["--reasoning-parser", "kimi_k3", "--chat-template", str(model / "template.jinja")]
    command += ["--max-num-seqs", "2"]
    errors = (tmp_path / "errors").open("w")
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True)
    yield process
    process.kill()
    process.wait()
    errors.close()


def test_a_real_server_is_tried_out_restarted_and_stopped(
    serving: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert serving.stdout is not None
    url = serving.stdout.readline().strip()
    told = (tmp_path / "errors").read_text()
    assert url.startswith("http://127.0.0.1:"), told[-3000:]
    assert "version: vLLM 0." in told and "ok   models: small with a window of 16,384" in told
    assert "of a repeated prompt reused" in told and "are never reused" in told
    assert json.loads((tmp_path / "state.json").read_text())["token"] == "k-1"
    assert httpx.get(f"{url}/v1/models").status_code == 401
    # The panel of the terminal UI reads its hit rate as it does that of k3agent's own server.
    seen = look(f"{url}/v1", "k-1")
    assert seen.is_up and seen.running is not None
    assert 0 < (seen.cached_tokens or 0) < (seen.read_tokens or 0)
    children = Path(f"/proc/{serving.pid}/task/{serving.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    end = time.monotonic() + LONG_S
    while "starting it again (1)" not in (tmp_path / "errors").read_text() or not answers(url):
        assert time.monotonic() < end and serving.poll() is None
        time.sleep(1)
    serving.terminate()
    assert serving.wait(60) == 0
    assert not answers(url)
    assert not (tmp_path / "state.json").exists()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
