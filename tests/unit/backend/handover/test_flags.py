"""Which flags of `k3agent serve` go together, and the words of the refusals."""

import pytest

from k3agent.backend.cli import main

PROBE = ["--probe", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*PROBE, "--gpus", "8xH200"], "--gpus: --probe asks a server that runs"),
        ([*PROBE, "--print"], "--print: --probe asks"),
        ([*PROBE, "--port", "9000", "--strict"], "--port --strict: --probe asks"),
        ([*PROBE, "--", "--more"], "-- --more: --probe asks"),
        (["--probe", "127.0.0.1:8000"], "give a server's address"),
        (["--probe", "http://"], "give a server's address"),
        (["--probe", "http://host:99999"], "give a server's address"),
        (["--probe", "http://host/v1?key=x"], "give a server's address"),
        (["--probe", ""], "give a server's address"),
        (["--gpus", "8xH200"], "--gpus: that is for other engines; add --engine vllm or --print"),
        (["--", "--kv-cache-metrics"], "-- --kv-cache-metrics: that is for other engines"),
        (["--print", "--model", "k3", "--disk-cache", "off"], "--disk-cache: only the bundled engine"),
        (["--engine", "vllm", "--model", "k3", "--dtype", "float16"], "--dtype: only the bundled engine"),
        (["--print", "sglang"], "name what SGLang is to serve"),
        (["--print", "--gpus", "8xH200"], "name what vLLM is to serve"),
        (["--print", "--engine", "vllm"], "name what vLLM is to serve"),
        (["--print", "--engine", "bundled", "--gpus", "8xH200"], "--gpus: that is for other engines"),
        (["--print", "--engine", "bundled", "--model", "nowhere"], "no config.json in"),
    ],
)
def test_refusals(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_no_engine_is_named_that_was_not_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert main(["--print", "sglang", "--model", "k3"]) == 2
    said = capsys.readouterr().err
    assert "Kimi-K3 needs GPUs" in said and "vLLM" not in said


def test_what_goes_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PROBE, "--model", "some", "--api-key", "k", "-v"]) == 1
    assert "Connection refused" in capsys.readouterr().out
    words = ["--model", "k3", "--gpus", "8xB300", "--host-cache-bytes", "64G", "--max-seqs", "4", "--device"]
    assert main(["--print", "sglang", *words, "cuda", "--", "--own"]) == 0
    assert "--max-running-requests 4" in (line := capsys.readouterr().out) and line.endswith("--own\n")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], "k3agent serve --model nano"),
        (
            ["--port", "0", "--threads", "4", "--api-key", "s3cret"],
            "k3agent serve --model nano --threads 4 --port 0",
        ),
        (["--engine", "bundled", "--json-logs"], "k3agent serve --model nano --engine bundled --json-logs"),
    ],
)
def test_without_another_engine_the_own_one_is_shown(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--print", *words]) == 0
    head, *keys, last = capsys.readouterr().out.splitlines()
    assert "nano on k3agent's own engine (cpu)" in head and "vLLM" not in head and last == command
    assert keys == (
        ["# the key that clients need goes into the variable K3AGENT_API_KEY"] if "s3cret" in words else []
    )


def test_a_command_of_another_engine_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print", "--model", "k3", "--gpus", "8xB300"]) == 0
    assert capsys.readouterr().out.startswith("# moonshotai/Kimi-K3 by vLLM on 8 x B300")
