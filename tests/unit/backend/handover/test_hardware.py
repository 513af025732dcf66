"""GPUs as the drivers' programs tell of them, and as users name them."""

import json
from collections.abc import Sequence

import pytest

from k3agent.backend.errors import BackendError
from k3agent.backend.handover.hardware import Machine, Run, find, parse, parse_type, run
from k3agent.backend.memory import GPUS, Gpu


def says(nvidia: str | None = None, amd: str | None = None) -> Run:
    def ask(command: Sequence[str]) -> str | None:
        return nvidia if command[0] == "nvidia-smi" else amd

    return ask


@pytest.mark.parametrize(
    "line, expected",
    [
        ("NVIDIA H200, 143771, 9.0", GPUS["H200"]),
        ("NVIDIA H100 80GB HBM3, 81559, 9.0", GPUS["H100"]),
        ("NVIDIA GB200, 189471, 10.0", GPUS["GB200"]),
        ("NVIDIA B300 SXM6 AC, 275040, 10.3", GPUS["B300"]),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 97887, 12.0", GPUS["RTX-PRO-6000"]),
        ("NVIDIA GeForce RTX 4090, 24564, 8.9", GPUS["RTX-4090"]),
        ("NVIDIA RTX A6000, 49140, 8.6", Gpu("NVIDIA-RTX-A6000", 52, has_fp8_latents=False)),
    ],
)
def test_types_by_name(line: str, expected: Gpu) -> None:
    assert find(says(f"{line}\n{line}\n"), {}) == Machine(expected, 2)


def test_amd() -> None:
    card = {"Card Series": "AMD Instinct MI355X", "VRAM Total Memory (B)": "309220868096"}
    assert find(says(None, json.dumps({"card0": card, "card1": card, "system": {}})), {}).count == 2
    assert find(says(None, "not json"), {}) == Machine(None, 0)


def test_none_and_those_that_are_hidden() -> None:
    line = "NVIDIA H200, 143771, 9.0\n"
    assert find(says(), {}) == Machine(None, 0)
    assert find(says("No devices were found\n"), {}).count == 0
    counts = {"0,2": 2, "": 0, "-1": 0, "3,9": 1, "GPU-6f2a": 1}
    for visible, count in counts.items():
        assert find(says(line * 4), {"CUDA_VISIBLE_DEVICES": visible}).count == count, visible


def test_several_types_are_refused() -> None:
    with pytest.raises(BackendError, match="H100, H200"):
        find(says("NVIDIA H200, 143771, 9.0\nNVIDIA H100 PCIe, 81559, 9.0\n"), {})


def test_a_program_that_is_not_there() -> None:
    assert run(["no-such-program-anywhere"]) is None
    assert run(["false"]) is None


def test_names_of_users() -> None:
    assert parse("8xH200") == Machine(GPUS["H200"], 8)
    assert parse("1xb300") == Machine(GPUS["B300"], 1)
    assert parse("16 x H200") == Machine(GPUS["H200"], 16)
    assert parse("2xX=96") == Machine(Gpu("X", 96, has_fp8_latents=True), 2)
    for text in ("", "0xH200", "8x", "eight H200", "8xH999", "2xX=0"):
        with pytest.raises(BackendError, match="--gpus"):
            parse(text)


def test_a_type_without_a_number() -> None:
    assert parse_type("h200") == (GPUS["H200"], None)
    with pytest.raises(BackendError, match="as in 8xH200; `k3agent plan MODEL --gpus H200`"):
        parse("H200")
