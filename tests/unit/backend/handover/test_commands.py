"""Commands of other engines: what stands in them, for which GPUs and versions, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from k3agent.backend.cli import parser
from k3agent.backend.errors import BackendError
from k3agent.backend.handover import kubernetes, sglang, vllm
from k3agent.backend.handover.asked import Asked, Launch
from k3agent.backend.handover.command import ask, environment
from k3agent.backend.handover.hardware import Machine, parse

VERSION = (0, 33, 0)


def asked(words: str, extra: list[str] | None = None) -> Asked:
    args = parser().parse_args(["--engine", "vllm", *words.split()])
    return ask(args, extra or [], parse(args.gpus) if args.gpus else Machine(None, 0))


def built(words: str, version: vllm.Version | None = VERSION) -> Launch:
    return vllm.launch(asked(words), version, ["vllm", "serve"])


def flags(command: list[str]) -> dict[str, str]:
    """Flags with the word behind each."""
    pairs = zip(command, [*command[1:], ""], strict=True)
    return {word: "" if after.startswith("--") else after for word, after in pairs if word.startswith("--")}


def test_k3_on_eight_large_gpus() -> None:
    (command,) = built("--model k3 --gpus 8xB300").commands
    found = flags(command)
    assert command[:3] == ["vllm", "serve", "moonshotai/Kimi-K3"]
    assert found["--tensor-parallel-size"] == "8" and "--data-parallel-size" not in found
    assert found["--tool-call-parser"] == found["--reasoning-parser"] == "kimi_k3"
    assert found["--prefix-match-unit"] == "128" and "--moe-backend" not in found


def test_k3_on_two_machines_with_h200() -> None:
    launch = built("--model kimi-k3 --gpus 16xH200 --master 10.0.0.1")
    first, second = map(flags, launch.commands)
    assert (first["--tensor-parallel-size"], first["--data-parallel-size"]) == ("8", "2")
    assert (first["--max-model-len"], first["--max-num-seqs"]) == ("32768", "5")
    assert (first["--moe-backend"], first["--gpu-memory-utilization"]) == ("marlin", "0.97")
    assert first["--data-parallel-address"] == "10.0.0.1" and "--headless" not in first
    assert second["--data-parallel-start-rank"] == "1" and "--headless" in second
    assert launch.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_pipelines_over_nodes() -> None:
    first, second = map(flags, built("--model k3 --gpus 16xB200 --master m").commands)
    assert first["--pipeline-parallel-size"] == "2" and first["--max-num-batched-tokens"] == "8192"
    assert (first["--nnodes"], first["--node-rank"], second["--node-rank"]) == ("2", "0", "1")
    assert "--headless" in second


def test_flags_follow_the_version() -> None:
    old = flags(built("--model k3 --gpus 8xB300", (0, 28, 0)).commands[0])
    assert old["--mamba-cache-mode"] == "align" and "--prefix-match-unit" not in old


@pytest.mark.parametrize(
    "words, version, text",
    [
        ("--model k3 --gpus 8xB300", (0, 26, 0), "vLLM 0.26.0 does not know Kimi K3; install 0.27.1"),
        ("--model kimi-linear --gpus 4xH200", (0, 12, 0), "indexer_rotary_emb"),
        ("--model kimi-linear --gpus 4xH200", (0, 11, 1), "does not know Kimi-Linear"),
        ("--model kimi-linear --gpus 4xH200 --cache-dtype fp8", VERSION, "FP8 cache on H200"),
        ("--model k3 --gpus 1xH200", VERSION, r"weights are 1,560.9 GB.*16 x H200 would do"),
        ("--model k3 --gpus 8xRTX-4090", VERSION, "Take larger GPUs"),
        ("--model k3 --gpus 16xB200 --draft", VERSION, "draft model does not work with --pp"),
        ("--model k3 --gpus 8xB300 --tp 16", VERSION, "needs 16 GPUs, 8 are there"),
        ("--model k3 --gpus 16xB300 --nodes 3", VERSION, "--nodes 3 does not divide 16 x B300"),
        ("--model k3 --gpus 16xB300 --node-rank 2", VERSION, "--node-rank 2 is none of 0 to 1"),
        ("--model k3", VERSION, "Kimi-K3 needs GPUs"),
        ("--model owner/name --tp 2", VERSION, "no GPU was found"),
        ("--model no-such", VERSION, "no model 'no-such'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(words: str, version: vllm.Version, text: str) -> None:
    with pytest.raises(BackendError, match=text):
        built(words, version)


def test_kimi_linear() -> None:
    found = flags(built("--model kimi-linear --gpus 8xH200").commands[0])
    assert (found["--tensor-parallel-size"], found["--data-parallel-size"]) == ("4", "2")
    amd = flags(built("--model kimi-linear --gpus 4xMI300X").commands[0])
    assert "--no-enable-prefix-caching" in amd and "--enable-prefix-caching" not in amd


def model_folder(folder: Path, size: int = 1000, **config: object) -> Path:
    config = {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 12} | config
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return folder


def test_any_model(tmp_path: Path) -> None:
    model_folder(tmp_path)
    found = flags(built(f"--model {tmp_path} --gpus 8xL40S --served-name it").commands[0])
    # 8 does not divide 12 heads.
    assert found["--tensor-parallel-size"] == "6"
    assert (found["--tool-call-parser"], found["--reasoning-parser"]) == ("hermes", "qwen3")
    assert "--trust-remote-code" not in found and found["--served-model-name"] == "it"
    with pytest.raises(BackendError, match=r"weights of 3.0 GB do not fit 1 x X"):
        built(f"--model {model_folder(tmp_path, 3 * 10**9)} --gpus 1xX=1")


def test_a_model_on_the_hub_and_on_a_cpu() -> None:
    launch = built("--model Qwen/Qwen3-0.6B")
    assert "--enforce-eager" in launch.commands[0] and "VLLM_CPU_KVCACHE_SPACE" in launch.environ
    assert any("whether it fits was not checked" in note for note in launch.notes)
    unknown = built("--model owner/strange --tool-parser pythonic")
    assert flags(unknown.commands[0])["--tool-call-parser"] == "pythonic"
    assert any("--tool-parser" in note for note in built("--model owner/strange").notes)


def test_own_flags_come_last() -> None:
    made = asked("--model k3 --gpus 8xB300", ["--max-model-len", "5"])
    assert vllm.launch(made, VERSION, ["vllm", "serve"]).commands[0][-2:] == ["--max-model-len", "5"]


def test_drafts_tiers_and_halves() -> None:
    words = "--model k3 --gpus 8xB300 --draft --host-cache-bytes 64G --split prefill --connector mooncake"
    launch = built(words)
    found = flags(launch.commands[0])
    assert json.loads(found["--speculative-config"])["model"] == "Inferact/Kimi-K3-DSpark"
    assert found["--kv-offloading-size"] == "64"
    transfer = json.loads(found["--kv-transfer-config"])
    assert transfer == {"kv_connector": "MooncakeConnector", "kv_role": "kv_producer"}
    assert launch.environ["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"


def test_sglang() -> None:
    launch = sglang.launch(asked("--model k3 --gpus 16xH200 --master m"))
    assert not launch.notes
    first, second = map(flags, launch.commands)
    assert (first["--tp"], first["--ep-size"], second["--node-rank"]) == ("16", "16", "1")
    assert first["--moe-runner-backend"] == "marlin" and first["--dist-init-addr"] == "m:20000"
    with pytest.raises(BackendError, match="for GPUs"):
        sglang.launch(asked("--model owner/name"))


@pytest.mark.parametrize(
    "made_by", [lambda made: vllm.launch(made, VERSION, ["vllm", "serve"]), sglang.launch]
)
def test_what_stands_for_the_first_node_is_told(made_by: Callable[[Asked], Launch]) -> None:
    (note,) = made_by(asked("--model k3 --gpus 16xH200")).notes
    assert "HOST-0 stands for the address of node 0" in note


def documents(words: str) -> list[dict]:
    yaml = pytest.importorskip("yaml")
    made = asked(words)
    text = kubernetes.manifest(made, vllm.launch(made, VERSION, ["vllm", "serve"]))
    return list(yaml.safe_load_all(text))


def test_a_manifest_of_one_node() -> None:
    deployment, service = documents("--model k3 --gpus 8xB300 --port 9000")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert container["command"][:2] == ["vllm", "serve"]
    assert container["readinessProbe"]["httpGet"]["port"] == 9000
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    keys = [entry for entry in container["env"] if entry["name"] == "VLLM_API_KEY"]
    assert "value" not in keys[0]


def test_a_manifest_of_several_nodes() -> None:
    workload, service = documents("--model k3 --gpus 32xH100 --nodes 4")
    template = workload["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 4
    worker = template["workerTemplate"]["spec"]["containers"][0]
    command = worker["command"]
    assert command[command.index("--data-parallel-start-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert command[command.index("--data-parallel-address") + 1] == "$(LWS_LEADER_ADDRESS)"
    assert "readinessProbe" not in worker
    assert service["spec"]["selector"]["role"] == "leader"


def test_the_key_is_in_no_command_line() -> None:
    launch = built("--model k3 --gpus 8xB300 --api-key sk-secret")
    assert "sk-secret" not in " ".join(launch.commands[0])
    own = {"PYTHONPATH": "/here", "VLLM_NO_USAGE_STATS": "0", "HOME": "/h"}
    found = environment(own, launch, "sk-secret")
    assert found["VLLM_API_KEY"] == "sk-secret" and found["VLLM_NO_USAGE_STATS"] == "0"
    assert "PYTHONPATH" not in found
