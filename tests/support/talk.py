"""A conversation with the chat client, as the agent keeps it."""

from datetime import UTC, datetime

from k3agent.providers.base import ModelInfo
from k3agent.providers.chat import ChatClient, Endpoint
from k3agent.providers.dialects import DIALECTS, dialect_for
from k3agent.providers.retry import RetryPolicy
from k3agent.providers.scripted import Recorded, ScriptedServer
from k3agent.types import (
    CallDelta,
    Delta,
    Effort,
    Finished,
    JsonObject,
    Message,
    MessageId,
    Origin,
    ReasoningDelta,
    ReasoningPart,
    Request,
    RetryDelta,
    Role,
    TextDelta,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)

KEY = "sk-test-0123456789abcdef"
READ = ToolSpec(
    name="read",
    description="Read a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
QUICK = RetryPolicy(max_retries=4, max_time_s=5.0)


def client_of(
    server: ScriptedServer, *, dialect: str = "moonshot", model: str = "kimi-k3", **options
) -> ChatClient:
    async def prepare() -> Endpoint:
        return Endpoint(base_url=server.url, api_key=KEY)

    info = ModelInfo(
        provider="test", model=model, base_url=server.url, context_window=262_144, max_output_tokens=32_000
    )
    options.setdefault("retry", QUICK)
    return ChatClient(info, DIALECTS.get(dialect) or dialect_for(server.url), prepare, **options)


class Talk:
    """A conversation as the agent keeps it: what was streamed becomes the next request's messages."""

    def __init__(self, client: ChatClient, **fields) -> None:
        self.client = client
        self.fields = {"model": "kimi-k3", "system": "Be brief.", "tools": (READ,), "effort": Effort.HIGH,
                       "cache_key": "s-1", **fields}  # fmt: skip
        self.messages: list[Message] = []
        self.deltas: list[Delta] = []

    def add(self, role: Role, *parts) -> Message:
        origin = {Role.USER: Origin.HUMAN, Role.TOOL: Origin.TOOL, Role.ASSISTANT: Origin.MODEL}[role]
        number = MessageId(f"m{len(self.messages)}")
        message = Message(
            id=number, parent=None, role=role, origin=origin, parts=tuple(parts), created_at=datetime.now(UTC)
        )
        self.messages.append(message)
        return message

    def request(self) -> Request:
        return Request(messages=tuple(self.messages), **self.fields)

    async def ask(self, text: str | None = None) -> Message:
        if text is not None:
            self.add(Role.USER, TextPart(text=text))
        self.deltas = [delta async for delta in self.client.stream(self.request())]
        return self.add(Role.ASSISTANT, *parts_of(self.deltas))

    def answer(self, call: ToolCall, text: str, *, is_error: bool = False) -> None:
        result = ToolResult(call_id=call.id, content=(TextPart(text=text),), is_error=is_error)
        self.add(Role.TOOL, result)

    @property
    def finished(self) -> Finished:
        assert isinstance(self.deltas[-1], Finished)
        return self.deltas[-1]

    @property
    def retries(self) -> list[RetryDelta]:
        return [delta for delta in self.deltas if isinstance(delta, RetryDelta)]


def parts_of(deltas: list[Delta]) -> list:
    last = max((i for i, delta in enumerate(deltas) if isinstance(delta, RetryDelta)), default=-1)
    deltas = deltas[last + 1 :]
    parts: list = []
    reasoning = [delta for delta in deltas if isinstance(delta, ReasoningDelta)]
    if reasoning:
        details = tuple(entry for delta in reasoning for entry in delta.details or ())
        parts.append(ReasoningPart(text="".join(delta.text for delta in reasoning), details=details or None))
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    if text:
        parts.append(TextPart(text=text))
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if isinstance(delta, CallDelta):
            old = calls.get(delta.index)
            calls[delta.index] = ToolCall(
                id=old.id if old else delta.id or "",
                name=old.name if old else delta.name or "",
                arguments=(old.arguments if old else "") + delta.arguments,
            )
    return parts + list(calls.values())


def messages_bytes(recorded: Recorded) -> bytes:
    start = recorded.body.index(b'"messages":[') + len(b'"messages":[')
    end = recorded.body.rindex(b'],"max_completion_tokens"')
    return recorded.body[start:end]


def check_k3(body: JsonObject) -> None:
    for name in ("temperature", "top_p", "n", "presence_penalty", "frequency_penalty", "max_tokens"):
        assert name not in body
    assert not ("reasoning_effort" in body and "thinking" in body)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_completion_tokens"] >= 16_000
