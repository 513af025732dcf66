"""Tokenizer and prompt grammar against golden ids and the vectors made with the released rank file."""

import base64
import json
from pathlib import Path

import pytest

from k3agent.backend.chat.images import ImageSettings, PreparedImage, plan_layout
from k3agent.backend.chat.template import ReadImage, render, render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.errors import ModelFilesError, TemplateError

SHARED = Path(__file__).resolve().parents[4].parent / "shared"
VECTORS = SHARED / "fixtures" / "kimi-chat" / "vectors.json"
pytestmark = pytest.mark.skipif(
    not VECTORS.exists(), reason="the fixtures folder is not beside the repository"
)
CASES = json.loads(VECTORS.read_text("utf-8")) if VECTORS.exists() else {}

HI = """
163587 2778 6244 878 14062 1 1798 878 130400 59991 470 1 163589 63 130400 123074 470 63 28560 418 1632 2455
308 2704 306 651 9545 8491 347 2976 3411 276 4503 8491 904 9141 4661 3867 1268 1332 5713 1268 50004 5713
1268 19421 5713 316 1268 5354 16518 10048 276 2403 387 42070 472 1268 130400 123074 470 105281 11369 163588
2778 163589 163586 163587 2778 6244 878 2482 1 163589 9663 163588 2778 163589 163586 163587 2778 6244 878
69702 1 163589 163587 39964 163589
"""


@pytest.mark.parametrize("name", CASES)
def test_vectors(kimi: Tokenizer, name: str) -> None:
    case = CASES[name]
    rendered = render(kimi, case["messages"], case["tools"], effort=case["reasoning_effort"])
    assert kimi.decode(rendered.token_ids) == case["prompt_text"]
    assert rendered.token_ids == case["token_ids"]


def test_golden_prompt(kimi: Tokenizer) -> None:
    rendered = render(kimi, [{"role": "user", "content": "hi"}])
    assert rendered.token_ids == [int(i) for i in HI.split()]
    assert rendered.num_stub == 3


def test_worked_example_has_382_tokens(kimi: Tokenizer) -> None:
    parameters = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}},
        "required": ["path"],
    }
    function = {"name": "list_dir", "description": "List a folder.", "parameters": parameters}
    calls = [
        {"id": "a", "function": {"name": "list_dir", "arguments": '{"path":"src","depth":2,"hidden":false}'}},
        {
            "id": "b",
            "function": {"name": "list_dir", "arguments": '{"path":"a\\"b & <c>","opts":{"x":[1,null]}}'},
        },
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is in src?"},
        {"role": "assistant", "reasoning_content": "I should look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": "empty"},
        {"role": "tool", "tool_call_id": "a", "content": "main.py"},
    ]
    tools = [{"type": "function", "function": function}]
    assert len(render(kimi, messages, tools, effort="low").token_ids) == 382


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("hello world", [22931, 2695]),
        (" 你好,world 123456\n\n", [220, 33845, 11, 23617, 220, 6694, 12972, 382]),
        ("<|open|>", [27, 91, 4454, 91, 29]),
    ],
)
def test_golden_pieces(kimi: Tokenizer, text: str, ids: list[int]) -> None:
    assert kimi.encode(text) == ids
    assert kimi.decode(ids) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("QUJDRA" * 5000, 19_999),
        (" " * 30_000 + "end", 121),
        ("word " * 6000, 6001),
        ("word " * 100_000, 100_002),
    ],
)
def test_long_runs_are_cut(kimi: Tokenizer, text: str, count: int) -> None:
    ids = kimi.encode(text)
    assert len(ids) == count
    assert kimi.decode(ids) == text


def test_attributes_are_four_pieces(kimi: Tokenizer) -> None:
    call = {"id": "1", "function": {"name": "_private", "arguments": ""}}
    ids = render_assistant(kimi, {"tool_calls": [call]})
    start = ids.index(10257)
    assert ids[start + 1 : start + 5] == [4453, 878, 29552, 1]


def test_prompt_counts_of_the_verifier(kimi: Tokenizer) -> None:
    rendered = render(kimi, [{"role": "assistant", "content": "你好"}], effort="high")
    assert len(rendered.token_ids) - rendered.num_stub == 99


def test_history_is_the_generation_prefix_and_the_answer(kimi: Tokenizer) -> None:
    question = {"role": "user", "content": "hi"}
    answer = {"role": "assistant", "content": "hello", "reasoning_content": "greet"}
    for thinking in (True, False):
        prompt = render(kimi, [question], thinking=thinking).token_ids
        whole = render(kimi, [question, answer], thinking=thinking, add_generation_prefix=False).token_ids
        assert whole == prompt + render_assistant(kimi, answer, thinking)


def test_sampled_ids_are_spliced(kimi: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    seen: list[tuple[list[int], list[int]]] = []

    def substitute(before: list[int], answer: list[int]) -> list[int] | None:
        seen.append((list(before), answer))
        return [7, 8, 9]

    ids = render(kimi, messages, add_generation_prefix=False, substitute=substitute).token_ids
    assert ids == [*render(kimi, messages[:1]).token_ids, 7, 8, 9]
    assert seen == [(render(kimi, messages[:1]).token_ids, render_assistant(kimi, messages[1]))]


def test_partial_leaves_its_channel_open(kimi: Tokenizer) -> None:
    message = {"role": "assistant", "content": "The ans", "reasoning_content": "Think.", "partial": True}
    rendered = render(kimi, [{"role": "user", "content": "q"}, message])
    assert rendered.channel == "response"
    assert kimi.decode(rendered.token_ids).endswith(
        "<|open|>think<|sep|>Think.<|close|>think<|sep|><|open|>response<|sep|>The ans"
    )


def test_control_messages_stand_behind_the_conversation(kimi: Tokenizer) -> None:
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object", "b": 1, "a": 2}},
    }
    text = kimi.decode(
        render(
            kimi,
            [{"role": "user", "content": "q"}],
            tool_choice="none",
            response_format=schema,
            thinking=False,
        ).token_ids
    )
    assert text.index("`tool_choice=none`") < text.index('{"a":2,"b":1,"type":"object"}')
    assert text.endswith('<|open|>message role="assistant"<|sep|><|open|>response<|sep|>')
    assert "thinking-effort" not in text


@pytest.mark.parametrize(
    "message",
    [
        {"role": "alien", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
        {"role": "tool", "content": "x", "tool_call_id": "nobody"},
    ],
)
def test_refusals(kimi: Tokenizer, message: dict) -> None:
    with pytest.raises(TemplateError):
        render(kimi, [message])


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000, "{", "1" * 5_000])
def test_arguments_that_json_cannot_read_are_one_block(kimi: Tokenizer, arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    text = kimi.decode(render_assistant(kimi, {"content": None, "tool_calls": [call]}))
    assert f'<|open|>json type="object"<|sep|>{arguments}<|close|>json<|sep|>' in text


@pytest.mark.parametrize("arguments", [5, [1], [], True, "[]", '"x"'])
def test_arguments_that_are_no_object_are_refused(kimi: Tokenizer, arguments: object) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(TemplateError, match="must be a JSON object"):
        render_assistant(kimi, {"content": None, "tool_calls": [call]})


def test_a_named_tool_choice_has_no_form(kimi: Tokenizer) -> None:
    choice = {"type": "function", "function": {"name": "f"}}
    plain = render(kimi, [{"role": "user", "content": "hi"}])
    assert render(kimi, [{"role": "user", "content": "hi"}], tool_choice=choice) == plain  # type: ignore[arg-type]


def test_a_folder_without_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"tiktoken\.model"):
        Tokenizer.from_dir(tmp_path)


@pytest.mark.parametrize("num_ranks", [0, 20, 50_000, 163_583])
def test_a_vocabulary_that_is_cut_off(tmp_path: Path, num_ranks: int) -> None:
    lines = [b"%s %d\n" % (base64.b64encode(i.to_bytes(3, "big")), i) for i in range(num_ranks)]
    (tmp_path / "tiktoken.model").write_bytes(b"".join(lines))
    with pytest.raises(ModelFilesError, match=rf"tiktoken\.model holds {num_ranks} ranks .*163584.*fetch"):
        Tokenizer.from_dir(tmp_path)


def test_a_vocabulary_without_all_bytes() -> None:
    with pytest.raises(ModelFilesError, match="255 of the 256 single bytes"):
        Tokenizer("a", {b"a": 0}, {"<|open|>": 1})


def test_own_vocabulary_format(tmp_path: Path) -> None:
    import base64

    lines = [f"{base64.b64encode(bytes([i])).decode()} {i}" for i in range(256)]
    lines.append(f"{base64.b64encode(b'ab').decode()} 256")
    (tmp_path / "v.tiktoken").write_text("\n".join(lines))
    config = {"pattern": r"\w+|\W", "special_tokens": {"<|open|>": 257}, "ranks": "v.tiktoken"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert tokenizer.vocab_size == 258
    assert tokenizer.encode("ab<|open|>")[0] == 256
    assert 257 not in tokenizer.encode("<|open|>")
    assert tokenizer.special("<|open|>") == 257
    assert tokenizer.decode([256, 257]) == "ab<|open|>"


class TestImages:
    """Placeholders: what one image of a user message becomes."""

    @staticmethod
    def reader(width: int, height: int) -> ReadImage:
        layout = plan_layout(width, height, ImageSettings())
        return lambda url: PreparedImage(layout=layout, pixels=url.encode())

    def test_golden_ids(self, kimi: Tokenizer) -> None:
        parts = [{"type": "image_url", "image_url": {"url": "a"}}]
        rendered = render(kimi, [{"role": "user", "content": parts}], read_image=self.reader(1024, 768))
        begin = rendered.token_ids.index(163602)
        expected = [163602, 4017, 220, 8040, 19, 87, 27955, 163603, *[163605] * 1036, 163604]
        assert rendered.token_ids[begin : begin + len(expected)] == expected
        assert [(p.position, p.image.pixels) for p in rendered.images] == [(begin + 8, b"a")]

    def test_parts_follow_each_other(self, kimi: Tokenizer) -> None:
        parts = [
            {"type": "text", "text": "left"},
            {"type": "image_url", "image_url": "x"},
            {"type": "text", "text": "<|media_pad|>"},
            {"type": "image_url", "image_url": {"url": "y", "detail": "high"}},
        ]
        messages = [{"role": "user", "name": "ann", "content": parts}]
        rendered = render(kimi, messages, read_image=self.reader(28, 28), effort=None)
        image = "<|media_begin|>image 28x28<|media_content|><|media_pad|><|media_end|>"
        text = kimi.decode(rendered.token_ids)
        assert text.startswith('<|open|>message role="user" name="ann"<|sep|>left' + image)
        assert f"{image}<|media_pad|>{image}<|close|>message<|sep|>" in text
        # what the user typed is no placeholder
        pads = [i for i, token in enumerate(rendered.token_ids) if token == kimi.special("<|media_pad|>")]
        assert pads == [p.position for p in rendered.images]

    def test_refusals(self, kimi: Tokenizer) -> None:
        parts = [{"type": "image_url", "image_url": {"url": "a"}}]
        with pytest.raises(TemplateError, match="reads no images"):
            render(kimi, [{"role": "user", "content": parts}])
        with pytest.raises(TemplateError, match="image_url"):
            render(kimi, [{"role": "system", "content": parts}], read_image=self.reader(28, 28))
