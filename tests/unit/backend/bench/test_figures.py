"""Tables, verdicts and traces of the benchmark."""

import json
from pathlib import Path

import pytest

from k3agent.backend.bench.cli import main
from k3agent.backend.bench.client import BenchError, Measured
from k3agent.backend.bench.load import Load
from k3agent.backend.bench.measure import Row
from k3agent.backend.bench.replay import Tally, recorded
from k3agent.backend.bench.report import as_json, table

ROW = Row(
    phase="cold",
    context=512,
    users=2,
    prompt_tokens=510,
    cached_tokens=64,
    cached_by_tier={"device": 128},
    first_token_s=0.25,
    prefill_tokens_per_s=1784.0,
    decode_tokens_per_s=20.5,
    total_decode_tokens_per_s=41.0,
)


def test_the_table_has_a_line_for_each_row_and_columns_that_line_up() -> None:
    lines = table([ROW, ROW]).splitlines()
    assert lines[2].split() == ["cold", "512", "2", "510", "64", "0.250", "1784", "20.5", "41.0"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_json_says_what_was_measured() -> None:
    found = json.loads(as_json("nano", [ROW], tokens=64))
    assert (found["model"], found["tokens"], found["rows"][0]["cached_by_tier"]) == (
        "nano",
        64,
        {"device": 128},
    )


def quiet(**fields: object) -> Load:
    values = {"seconds": 10.0, "streams": 2, "completed": 30, "tokens_by_stream": [100, 90], "first_s": [1.0]}
    return Load(**{**values, "resident_bytes": [500 << 20] * 40, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"tokens_by_stream": [100, 5]}, "unfair"),
        ({"completed": 1}, "completed"),
        ({"first_s": [1.0, 1.0, 40.0]}, "first token"),
        ({"resident_bytes": [(300 + 10 * n) << 20 for n in range(40)]}, "memory grew"),
        ({"resident_bytes": [300 << 20] * 9 + [500 << 20] * 31}, ""),
        ({"resident_bytes": [0] * 40}, ""),
    ],
)
def test_what_a_load_is_blamed_for(fields: dict[str, object], words: str) -> None:
    load = quiet(**fields)
    load.judge()
    assert bool(load.problems) == bool(words)
    assert all(words in problem for problem in load.problems)
    assert load.summary()["problems"] == load.problems


def test_what_a_cache_should_have_known() -> None:
    tally = Tally()
    tally.add("turn", Measured(prompt_tokens=100, cached_tokens=0, first_s=1.0), 0)
    tally.add("turn", Measured(prompt_tokens=150, cached_tokens=90, first_s=2.0), 120)
    found = tally.summary()
    assert (found["recomputed_tokens"], found["new_tokens"]) == (160, 130)
    assert found["found_share"] == 0.75
    assert found["requests"] == {"turn": 2}


def test_a_trace_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"messages": [1], "model": "x", "stream": true}\n\n{"messages": [2], "tools": []}\n')
    assert recorded(file) == [{"messages": [1]}, {"messages": [2], "tools": []}]
    file.write_text('{"messages": []}\n[1, 2')
    with pytest.raises(BenchError, match="line 2"):
        recorded(file)


def test_rates() -> None:
    measured = Measured(prompt_tokens=100, cached_tokens=40, completion_tokens=11, first_s=0.5, total_s=1.5)
    assert (measured.prefill_rate, measured.decode_rate) == (120, 10)
    assert Measured().decode_rate == 0


@pytest.mark.parametrize("arguments", [["measrue"], ["model.json"]])
def test_an_unknown_measurement_is_told_which_there_are(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"no measurement '{arguments[0]}': give one of measure, replay, load, model" in said
