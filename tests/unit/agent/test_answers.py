"""Answers that cannot be used as they are: empty, leaking, cut off, with odd ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agents import (
    DONE,
    call,
    finished,
    start,
    step,
)

from k3agent.errors import (
    ProviderError,
    ProviderErrorKind,
)
from k3agent.events import (
    Noticed,
    Retrying,
    TurnOutcome,
)
from k3agent.providers.scripted import Fault, Step
from k3agent.types import (
    CallDelta,
    Finish,
    Origin,
    ReasoningDelta,
    RetryDelta,
    TextDelta,
)


async def test_reasoning_alone_is_asked_again_and_not_kept(tmp_path: Path) -> None:
    only = [ReasoningDelta(text="hm"), finished()]
    run = await start(tmp_path, [DONE], attempts={0: [only, only]})
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS and run.last.text == "Done."
    assert len(run.client.requests) == 3 and run.session.receipt.num_turns == 3
    assert [row.outcome for row in run.session._store.requests(run.session.id)] == [
        "discarded: reasoning only",
        "discarded: reasoning only",
        "ok",
    ]
    assert len({id(r.messages) and len(r.messages) for r in run.client.requests}) == 1
    await run.session.aclose()


async def test_reasoning_alone_three_times_ends_the_turn(tmp_path: Path) -> None:
    only = [ReasoningDelta(text="hm"), finished()]
    run = await start(tmp_path, [only])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "only reasoning" in end.detail
    assert len(run.client.requests) == 3
    await run.session.aclose()


@pytest.mark.parametrize(
    "leak",
    [
        [TextDelta(text="Let me<|cl"), TextDelta(text="ose|>response<|sep|>"), finished()],
        [ReasoningDelta(text="so <|open|>tools<|sep|>"), finished()],
        [TextDelta(text="Fine.\n<|tool_calls_section_begin|>"), finished()],
        [TextDelta(text="<think>I should"), finished()],
    ],
)
async def test_a_leaked_marker_is_never_shown_and_asked_about_once(tmp_path: Path, leak: list[Any]) -> None:
    run = await start(tmp_path, [DONE], attempts={0: [leak]})
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    shown = "".join(getattr(event, "text", "") for event in run.events if not isinstance(event, Noticed))
    assert "<|" not in shown and "<think" not in shown
    assert [event.attempt for event in run.of(Retrying)] == [1]
    assert all("<|" not in message.text for message in run.session.messages)
    rows = run.session._store.requests(run.session.id)
    assert rows[0].outcome.startswith("discarded: leaked <") and rows[1].outcome == "ok"
    await run.session.aclose()


async def test_a_server_that_always_leaks_is_named_as_the_cause(tmp_path: Path) -> None:
    run = await start(tmp_path, [[TextDelta(text="x<|sep|>"), finished()]])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.PROVIDER and "parser" in end.detail
    assert len(run.client.requests) == 2
    await run.session.aclose()


async def test_talking_about_markers_is_no_leak(tmp_path: Path) -> None:
    answer = [TextDelta(text="`<|open|>` opens a channel."), finished()]
    run = await start(tmp_path, [answer])
    end = await run.session.submit("What does <|open|> mean?")
    assert end.outcome is TurnOutcome.SUCCESS and run.last.text == "`<|open|>` opens a channel."
    assert len(run.client.requests) == 1
    await run.session.aclose()


async def test_thinking_that_keeps_coming_as_text_is_kept_as_it_came(tmp_path: Path) -> None:
    run = await start(tmp_path, [[TextDelta(text="<think>hm</think>Yes."), finished()]])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS and run.last.text == "<think>hm</think>Yes."
    await run.session.aclose()


async def test_a_retry_voids_what_was_streamed(tmp_path: Path) -> None:
    deltas = [
        ReasoningDelta(text="half a th"),
        CallDelta(index=0, id="c", name="write", arguments='{"pa'),
        RetryDelta(attempt=1, delay_s=0.0, reason="cut"),
        ReasoningDelta(text="whole"),
        TextDelta(text="Answer."),
        finished(),
    ]
    run = await start(tmp_path, [deltas])
    await run.session.submit("go")
    assert run.last.calls == () and run.last.text == "Answer."
    assert run.last.reasoning is not None and run.last.reasoning.text == "whole"
    assert len(run.of(Retrying)) == 1
    await run.session.aclose()


async def test_faults_of_the_provider_are_retried_or_end_the_turn(tmp_path: Path) -> None:
    cut = Step(text="All fine.", faults=(Fault(kind="cut", times=2),))
    refused = Step(faults=(Fault(kind="status", status=401),))
    run = await start(tmp_path, [cut, refused, DONE])
    assert (await run.session.submit("one")).outcome is TurnOutcome.SUCCESS
    assert run.last.text == "All fine."
    end = await run.session.submit("two")
    assert end.outcome is TurnOutcome.PROVIDER
    assert isinstance(run.session.error, ProviderError) and run.session.error.kind is ProviderErrorKind.AUTH
    assert run.session.receipt.errors
    await run.session.aclose()


async def test_an_answer_without_a_finish_runs_nothing(tmp_path: Path) -> None:
    deltas = [CallDelta(index=0, id="c", name="write", arguments='{"path": "a", "content": ""}')]
    run = await start(tmp_path, [deltas])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.PROVIDER and not list(run.workspace.iterdir())
    await run.session.aclose()


async def test_calls_cut_by_the_output_limit_do_not_run(tmp_path: Path) -> None:
    deltas = [
        CallDelta(index=0, id="a", name="write", arguments='{"path": "a", "content": "x"}'),
        CallDelta(index=1, id="b", name="write", arguments='{"path": "b", "cont'),
        finished(Finish.LENGTH),
    ]
    run = await start(tmp_path, [deltas, DONE])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    assert not list(run.workspace.iterdir())
    assert len(run.results) == 2 and all("cut off at the output limit" in text for text in run.results)
    await run.session.aclose()


async def test_a_text_cut_by_the_output_limit_goes_on_a_few_times(tmp_path: Path) -> None:
    cut = [TextDelta(text="and so on"), finished(Finish.LENGTH)]
    run = await start(tmp_path, [cut, DONE, cut, cut, cut])
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    end = await run.session.submit("more")
    assert end.outcome is TurnOutcome.EXECUTION and "--max-output-tokens raises it" in end.detail
    await run.session.aclose()


@pytest.mark.parametrize("kind", [TextDelta, ReasoningDelta])
async def test_a_model_that_repeats_itself_is_not_given_more_room(
    tmp_path: Path, kind: type[TextDelta | ReasoningDelta]
) -> None:
    said = [TextDelta(text="\n")] if kind is ReasoningDelta else []
    run = await start(
        tmp_path, [[kind(text="I read the file again.\n" * 60), *said, finished(Finish.LENGTH)]] * 4
    )
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION
    assert "repeats itself" in end.detail and "--max-output-tokens" not in end.detail
    await run.session.aclose()


async def test_missing_and_repeated_call_ids_are_made_distinct(tmp_path: Path) -> None:
    glob = '{"pattern": "*"}'
    deltas = [
        CallDelta(index=0, name="glob", arguments=glob),
        CallDelta(index=1, id="same", name="glob", arguments=glob),
        CallDelta(index=2, id="same", name="glob", arguments=glob),
        finished(Finish.TOOL_CALLS),
    ]
    again = [CallDelta(index=0, id="same", name="glob", arguments=glob), finished(Finish.TOOL_CALLS)]
    run = await start(tmp_path, [deltas, again, DONE])
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    ids = [item.id for message in run.session.messages for item in message.calls]
    assert len(set(ids)) == 4 and all(ids) and ids[1:] == ["same", "same_2", "same_3"]
    await run.session.aclose()


async def test_split_surrogates_become_one_character(tmp_path: Path) -> None:
    run = await start(tmp_path, [[TextDelta(text="a\ud83d"), TextDelta(text="\ude00b \ud800"), finished()]])
    await run.session.submit("go")
    assert run.last.text == "a\U0001f600b \ufffd"
    await run.session.aclose()


@pytest.mark.parametrize(
    ("deltas", "tokens", "is_lost"),
    [
        ([ReasoningDelta(text="I write the file.")], 10, True),
        ([TextDelta(text="I write the file now.")], 2048, True),
        ([TextDelta(text="and so on " * 300)], 600, False),
    ],
)
async def test_a_call_that_the_server_threw_away_at_the_limit_is_told(
    tmp_path: Path, deltas: list[Any], tokens: int, is_lost: bool
) -> None:
    run = await start(tmp_path, [[*deltas, finished(Finish.LENGTH, tokens)], DONE])
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    said = run.client.requests[-1].messages[-1]
    assert said.origin is Origin.HARNESS and "cut off at the output limit" in said.text
    assert ("nothing of it was run" in said.text) == is_lost
    assert ("Go on from where it stopped" in said.text) != is_lost
    await run.session.aclose()


async def test_an_answer_that_is_cut_off_again_and_again_names_the_flag(tmp_path: Path) -> None:
    cut = [ReasoningDelta(text="hm"), finished(Finish.LENGTH, 2048)]
    run = await start(tmp_path, [cut, cut, cut])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "--max-output-tokens" in end.detail
    await run.session.aclose()


async def test_a_question_that_nobody_answers_is_kept_and_its_default_taken(tmp_path: Path) -> None:
    asks = [
        call("ask", question="Tabs or spaces?", options=["tabs", "spaces"], default="spaces"),
        call("ask", question="Which name?"),
    ]
    run = await start(tmp_path, [step(*asks), step(call("glob", pattern="*")), DONE])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    default, none = (result for result in run.session.messages[-4].results)
    assert default.text.endswith("your default is taken) spaces") and not default.is_error
    assert none.is_error and "nobody can answer" in none.text
    assert [(asked["question"], asked["taken"]) for asked in run.session.receipt.questions] == [
        ("Tabs or spaces?", "spaces"),
        ("Which name?", None),
    ]
    await run.session.aclose()
