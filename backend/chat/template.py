"""Messages and tools to token ids, in K3's prompt grammar.

The grammar is nested elements made of four special tokens. Every piece (a tag name, a quarter of an
attribute, a body) is tokenised on its own, because the model was trained on exactly those ids; tokenising the
joined text gives others. Source of the rules: the encoder that Moonshot publishes with K3.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from k3agent.backend.chat.images import PreparedImage
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.errors import TemplateError

Json = dict[str, Any]
Channel = Literal["think", "response"]
# (ids before the answer, ids of the answer as rendered) to the ids that were really sampled, if known
Substitute = Callable[[list[int], list[int]], list[int] | None]
ReadImage = Callable[[str], PreparedImage]

EFFORTS = ("low", "high", "max")

_TOOLS_TOP = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
_TOOLS_ADDED = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n```json\n{}\n```"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response"
    " channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_CHOICE = {
    "required": "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.",
}
_JSON_OUT = (
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown"
    " code blocks (```json) or any additional formatting."
)
_SCHEMA_OUT = "\nThe JSON data must match the following schema:\n```json\n{}\n```"


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image and the position of its first placeholder; as many follow as it has visual tokens."""

    position: int
    image: PreparedImage


@dataclass(slots=True)
class Rendered:
    """A prompt. `channel` is where the model goes on writing; the last `num_stub` ids are not billed as
    prompt; `anchors` are positions that other requests are likely to share: the end of the system part, and
    the end of the messages where something about this one answer follows.
    """

    token_ids: list[int] = field(default_factory=list)
    channel: Channel = "think"
    num_stub: int = 0
    anchors: list[int] = field(default_factory=list)
    images: list[PlacedImage] = field(default_factory=list)


def compact_json(value: object) -> str:
    """JSON the way tool declarations carry it: keys sorted, no blanks, non-ASCII kept."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def json_type(value: object) -> str:
    """The `type` attribute of an argument value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case dict():
            return "object"
        case _:
            return "array"


def call_parts(call: Json) -> tuple[str, object]:
    """Name and arguments (a string, an object or None) of a tool call of a message."""
    function = call.get("function")
    source = function if isinstance(function, dict) else call
    name = source.get("name")
    if not isinstance(name, str) or not name:
        raise TemplateError(f"a tool call has no function name: {call!r}")
    return name, source.get("arguments")


def has_images(message: Json) -> bool:
    """Has the content an image part?"""
    content = message.get("content")
    return isinstance(content, list) and any(image_url(part) is not None for part in content)


def image_url(part: object) -> str | None:
    """The URL of an image part, whose `image_url` may be an object or the bare string."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return url
    return None


def text_parts(content: object, where: str) -> list[str]:
    """The text pieces of a message's content: a string, or a list of text parts."""
    match content:
        case None:
            return []
        case str():
            return [content]
        case list():
            return [_part_text(part, where) for part in content]
        case _:
            raise TemplateError(f"content of {where} must be a string or a list of parts, not {content!r}")


def _part_text(part: object, where: str) -> str:
    match part:
        case str():
            return part
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)}:
            raise TemplateError(f"content part of type {kind!r} in {where} is not supported here; send text")
        case _:
            raise TemplateError(
                f"content part {part!r} in {where} has no form in the prompt; send text parts"
            )


def reasoning_text(message: Json) -> str:
    """The reasoning of an assistant message, whichever field carries it; white space only counts as none."""
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if isinstance(value, str) and value.strip():
            return value
    details = message.get("reasoning_details")
    if isinstance(details, list):
        text = "".join(str(item.get("text") or "") for item in details if isinstance(item, dict))
        return text if text.strip() else ""
    return ""


class Writer:
    """Appends elements of the grammar to a list of ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ids: list[int] = []
        self.images: list[PlacedImage] = []
        self._tokenizer = tokenizer
        self._open = tokenizer.special("<|open|>")
        self._close = tokenizer.special("<|close|>")
        self._sep = tokenizer.special("<|sep|>")
        self._end = tokenizer.special("<|end_of_msg|>")

    def open(self, tag: str, **attributes: str) -> None:
        memo = self._tokenizer.encode_memo
        self.ids.append(self._open)
        self.ids += memo(tag)
        for key, value in attributes.items():
            self.ids += memo(" " + key)
            self.ids += memo('="')
            self.ids += memo(value.replace("&", "&amp;").replace('"', "&quot;"))
            self.ids += memo('"')
        self.ids.append(self._sep)

    def text(self, *pieces: str) -> None:
        for piece in pieces:
            self.ids += self._tokenizer.encode(piece)

    def image(self, image: PreparedImage) -> None:
        """An image: the size of the upload in words, then one placeholder for each visual token."""
        special, layout = self._tokenizer.special, image.layout
        self.ids.append(special("<|media_begin|>"))
        self.ids += self._tokenizer.encode(f"image {layout.width}x{layout.height}")
        self.ids.append(special("<|media_content|>"))
        self.images.append(PlacedImage(len(self.ids), image))
        self.ids += [special("<|media_pad|>")] * layout.num_tokens
        self.ids.append(special("<|media_end|>"))

    def close(self, tag: str) -> None:
        self.ids.append(self._close)
        self.ids += self._tokenizer.encode_memo(tag)
        self.ids.append(self._sep)

    def end_message(self) -> None:
        self.close("message")
        self.ids.append(self._end)

    def message(self, pieces: Sequence[str], **attributes: str) -> None:
        self.open("message", **attributes)
        self.text(*pieces)
        self.end_message()

    def control(self, kind: str, body: str) -> None:
        """A system message of the harness: its type says what it controls."""
        self.message([body], role="system", type=kind)


def render_assistant(tokenizer: Tokenizer, message: Json, thinking: bool = True) -> list[int]:
    """The ids that a model emits for `message` after the generation prefix, up to and with the end of the
    message.
    """
    writer = Writer(tokenizer)
    if thinking:
        writer.text(reasoning_text(message))
        writer.close("think")
        writer.open("response")
    writer.text(*text_parts(message.get("content"), "an assistant message"))
    writer.close("response")
    calls = message.get("tool_calls") or []
    if calls:
        writer.open("tools")
        for index, call in enumerate(calls, 1):
            _write_call(writer, call, index)
        writer.close("tools")
    writer.end_message()
    return writer.ids


def _write_call(writer: Writer, call: Json, index: int) -> None:
    name, arguments = call_parts(call)
    writer.open("call", tool=name, index=str(index))
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            # what is not JSON goes back as one opaque block, so that the model sees what it wrote
            writer.open("json", type="object")
            writer.text(str(arguments))
            writer.close("json")
            arguments = ""
    is_nothing = arguments is None or (isinstance(arguments, str) and not arguments.strip())
    if not is_nothing and not isinstance(arguments, dict):
        raise TemplateError(f"arguments of the call of {name} must be a JSON object, not {arguments!r}")
    for key, value in arguments.items() if isinstance(arguments, dict) else ():
        writer.open("argument", key=key, type=json_type(value))
        writer.text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        writer.close("argument")
    writer.close("call")


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Json],
    tools: Sequence[Json] | None = None,
    *,
    effort: str | None = "max",
    tool_choice: str | None = None,
    response_format: Json | None = None,
    thinking: bool = True,
    add_generation_prefix: bool = True,
    substitute: Substitute | None = None,
    read_image: ReadImage | None = None,
) -> Rendered:
    """Render a conversation as K3 sees it.

    `messages` are OpenAI-style dicts. `substitute` may replace the ids of an answer in the history by those
    that were sampled for it (see `answers.py`). A last assistant message with `partial` true is left open and
    continued. `read_image` gives the images of user messages; without it, as for a model without vision, an
    image is an error.
    """
    if effort is not None and effort not in EFFORTS:
        raise TemplateError(f"reasoning effort {effort!r} is unknown; use one of {', '.join(EFFORTS)}")
    writer = Writer(tokenizer)
    if tools:
        writer.control("tool-declare", _TOOLS_TOP.format(compact_json(list(tools))))
    if thinking and effort is not None:
        writer.control("thinking-effort", _EFFORT.format(effort))
    partial = messages[-1] if messages and messages[-1].get("partial") else None
    if partial is not None and partial.get("role") != "assistant":
        raise TemplateError("partial is only possible on a last message with role assistant")
    history = messages[:-1] if partial is not None else messages
    roles = [message.get("role") for message in history]
    num_system = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
    conversation = _Conversation(tokenizer, writer, thinking, substitute, read_image)
    conversation.write(history[:num_system])
    anchors = [len(writer.ids)] if writer.ids and num_system < len(history) else []
    conversation.write(history[num_system:])
    has_choice = isinstance(tool_choice, str) and tool_choice in _CHOICE
    if has_choice or response_format:
        # what follows is said of this answer only: the next request goes on here
        anchors.append(len(writer.ids))
    if has_choice:
        writer.control("tool-choice", _CHOICE[str(tool_choice)])
    if response_format:
        _write_response_format(writer, response_format)
    rendered = Rendered(writer.ids, anchors=anchors, images=writer.images)
    if partial is not None:
        _open_partial(writer, rendered, partial, thinking)
    elif add_generation_prefix:
        writer.open("message", role="assistant")
        before = len(writer.ids)
        rendered.channel = "think" if thinking else "response"
        writer.open(rendered.channel)
        rendered.num_stub = len(writer.ids) - before
    return rendered


def _open_partial(writer: Writer, rendered: Rendered, message: Json, thinking: bool) -> None:
    """Render the given beginning of an answer and leave its last channel open."""
    content = text_parts(message.get("content"), "the partial message")
    _open_assistant(writer, message)
    rendered.channel = "response" if any(content) or not thinking else "think"
    if thinking:
        writer.open("think")
        writer.text(reasoning_text(message))
        if rendered.channel == "response":
            writer.close("think")
    if rendered.channel == "response":
        writer.open("response")
        writer.text(*content)


def _open_assistant(writer: Writer, message: Json) -> None:
    name = message.get("name")
    writer.open("message", role="assistant", **({"name": name} if isinstance(name, str) and name else {}))


def _write_response_format(writer: Writer, response_format: Json) -> None:
    kind = response_format.get("type")
    if kind not in ("json_object", "json_schema"):
        return
    text = _JSON_OUT.format(kind)
    if kind == "json_schema":
        outer = response_format.get("json_schema")
        schema = outer
        if isinstance(outer, dict):
            schema = next(
                (outer[key] for key in ("schema", "json_schema") if outer.get(key) is not None), outer
            )
        text += _SCHEMA_OUT.format(compact_json(schema))
    writer.control("response-format", text)


class _Conversation:
    """Writes the messages in order; keeps what tool results need from the latest assistant message."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        writer: Writer,
        thinking: bool,
        substitute: Substitute | None,
        read_image: ReadImage | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._writer = writer
        self._thinking = thinking
        self._substitute = substitute
        self._read_image = read_image
        self._calls: list[tuple[str, str]] = []  # id and name of each call of the latest assistant message
        self._num_results = 0

    def write(self, messages: Sequence[Json]) -> None:
        position = 0
        while position < len(messages):
            message = messages[position]
            role = message.get("role")
            end = position + 1
            if role == "tool":
                while end < len(messages) and messages[end].get("role") == "tool":
                    end += 1
                self._write_results(messages[position:end])
            elif role == "assistant":
                self._write_assistant(message)
            elif role in ("system", "developer", "user"):
                self._write_plain(message, "user" if role == "user" else "system")
            else:
                raise TemplateError(
                    f"message {position} has role {role!r}; use system, developer, user, assistant or tool"
                )
            position = end

    def _write_plain(self, message: Json, role: str) -> None:
        if role == "system" and message.get("tools"):
            self._writer.control("tool-declare", _TOOLS_ADDED.format(compact_json(message["tools"])))
            return
        name = message.get("name")
        attributes = {"name": name} if isinstance(name, str) and name else {}
        if role == "user" and has_images(message):
            self._write_parts(message["content"], attributes)
            return
        self._writer.message(text_parts(message.get("content"), f"a {role} message"), role=role, **attributes)

    def _write_parts(self, parts: Sequence[object], attributes: dict[str, str]) -> None:
        """A user message with images, part after part and nothing between them."""
        writer = self._writer
        writer.open("message", role="user", **attributes)
        for part in parts:
            url = image_url(part)
            if url is None:
                writer.text(_part_text(part, "a user message"))
            elif self._read_image is None:
                raise TemplateError("this model reads no images; send text, or use a model with vision")
            else:
                writer.image(self._read_image(url))
        writer.end_message()

    def _write_assistant(self, message: Json) -> None:
        writer = self._writer
        _open_assistant(writer, message)
        writer.open("think" if self._thinking else "response")
        ids = render_assistant(self._tokenizer, message, self._thinking)
        sampled = self._substitute(writer.ids, ids) if self._substitute else None
        writer.ids += ids if sampled is None else sampled
        self._calls = [
            (str(call.get("id") or ""), call_parts(call)[0]) for call in message.get("tool_calls") or []
        ]
        self._num_results = 0

    def _write_results(self, run: Sequence[Json]) -> None:
        places = [self._place(message) for message in run]
        ordered = list(zip(places, run, strict=True))
        known = [place for place in places if place is not None]
        if len(known) == len(run):
            ordered.sort(key=lambda pair: pair[0] or 0)
        for place, message in ordered:
            self._num_results += 1
            name = self._calls[place][1] if len(known) == len(run) and place is not None else None
            self._writer.message(
                text_parts(message.get("content"), "a tool message"),
                role="tool",
                tool=name or self._result_name(message),
                index=str(self._num_results),
            )

    def _place(self, message: Json) -> int | None:
        """Position of the call that a result answers; also understands the alias NAME:ZERO_BASED_INDEX."""
        call_id = message.get("tool_call_id") or message.get("id")
        if not call_id:
            return None
        for place, (known_id, _name) in enumerate(self._calls):
            if known_id == call_id:
                return place
        for place, (_known_id, name) in enumerate(self._calls):
            if call_id == f"{name}:{place}":
                return place
        return None

    def _result_name(self, message: Json) -> str:
        for key in ("tool", "name"):
            value = message.get(key)
            if isinstance(value, str) and value:
                return value
        if self._num_results <= len(self._calls):
            return self._calls[self._num_results - 1][1]
        raise TemplateError(
            f"tool result {message.get('tool_call_id')!r} belongs to no call of the latest assistant message"
            " and names no tool"
        )
