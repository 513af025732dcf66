"""A session as Markdown, HTML or JSON. Texts of the session are never markup in the HTML."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from k3agent import codec
from k3agent.safety.visible import code_block
from k3agent.store.records import CompactionRow, SessionRow
from k3agent.types import ImagePart, JsonObject, Message, ReasoningPart, TextPart, ToolCall, ToolResult

FORMATS = ("md", "html", "json")

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222;"
    "background:#fff}pre{background:#f5f5f3;padding:.7rem;overflow-x:auto;white-space:pre-wrap}"
    "h2{font-size:1rem;margin:1.6rem 0 .4rem;border-top:1px solid #ddd;padding-top:.8rem}"
    "details{color:#666;margin:.4rem 0}.error{border-left:3px solid #b00}"
    "@media(prefers-color-scheme:dark){body{background:#191918;color:#ddd}pre{background:#252523}h2{border-color:#444}}"
)


def export_session(
    row: SessionRow, messages: list[Message], form: str, compactions: Sequence[CompactionRow] = ()
) -> str:
    """The session in one of `FORMATS`. `compactions` are marked in the Markdown."""
    if form == "json":
        body = [codec.message_to_dict(message) for message in messages]
        return (
            json.dumps({"session": row_to_dict(row), "messages": body}, ensure_ascii=False, indent=1) + "\n"
        )
    return _html(row, messages) if form == "html" else _markdown(row, messages, compactions)


def row_to_dict(row: SessionRow) -> JsonObject:
    """A line of the list of sessions, for scripts."""
    return {
        "id": row.id,
        "cwd": row.cwd,
        "title": row.title,
        "model": row.model,
        "created_at": row.created_at.isoformat(),
        "updated_at": row.updated_at.isoformat(),
        "num_messages": row.num_messages,
        "parent_id": row.parent_id,
    }


def _markdown(row: SessionRow, messages: list[Message], compactions: Sequence[CompactionRow]) -> str:
    out = [
        f"# {row.title or row.id}",
        "",
        f"{row.model} in `{row.cwd}`, {row.created_at:%Y-%m-%d %H:%M} UTC",
        "",
    ]
    for message in messages:
        out += [f"## {_heading(message)}", ""]
        for part in message.parts:
            out += [_markdown_part(part), ""]
        out += [line for item in compactions if item.leaf == message.id for line in (_mark(item), "")]
    return "\n".join(out)


def _mark(item: CompactionRow) -> str:
    """Where the context was made short, and what the model was told from then on."""
    undone = ", undone since" if item.is_undone else ""
    facts = (
        f"{item.cause}{undone}; about {item.tokens_before:,} to {item.tokens_after:,} tokens;"
        f" {item.num_dropped} messages dropped from the context, {item.num_kept} kept;"
        f" summary: {item.method}; {item.cost_usd:.4f} USD"
    )
    return f"## Context compacted\n\n{facts}\n\n{code_block(item.message.text)}"


def _markdown_part(part: object) -> str:
    match part:
        case TextPart():
            return part.text
        case ReasoningPart():
            return "\n".join(f"> {line}" for line in part.text.splitlines())
        case ToolCall():
            return f"**{part.name}**\n\n{code_block(part.arguments, 'json')}"
        case ToolResult():
            return ("Error:\n\n" if part.is_error else "") + code_block(part.text)
        case ImagePart():
            return f"*(image, {part.mime}, {len(part.data)} bytes)*"
    return ""


def _html(row: SessionRow, messages: list[Message]) -> str:
    title = html.escape(row.title or row.id)
    out = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>',
        f"<h1>{title}</h1><p>{html.escape(row.model)} in <code>{html.escape(row.cwd)}</code>, "
        f"{row.created_at:%Y-%m-%d %H:%M} UTC</p>",
    ]
    for message in messages:
        out.append(f"<h2>{html.escape(_heading(message))}</h2>")
        out += [_html_part(part) for part in message.parts]
    return "\n".join(out) + "\n</html>\n"


def _html_part(part: object) -> str:
    match part:
        case TextPart():
            return f"<pre>{html.escape(part.text)}</pre>"
        case ReasoningPart():
            return f"<details><summary>Thinking</summary><pre>{html.escape(part.text)}</pre></details>"
        case ToolCall():
            return f"<p><b>{html.escape(part.name)}</b></p><pre>{html.escape(part.arguments)}</pre>"
        case ToolResult():
            kind = ' class="error"' if part.is_error else ""
            return f"<pre{kind}>{html.escape(part.text)}</pre>"
        case ImagePart():
            return f"<p><i>image, {html.escape(part.mime)}, {len(part.data)} bytes</i></p>"
    return ""


def _heading(message: Message) -> str:
    names = {"human": "User", "harness": "k3agent", "model": "Assistant", "tool": "Tool results"}
    return names.get(message.origin.value, message.role.value)
