"""Run with an interpreter that has litellm: a tool-calling conversation under each of its prefixes.

Arguments: base URL, key, model. Prints what was said as JSON.
"""

# its packages live in another environment, so their types are not known here
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm

READ = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
litellm.suppress_debug_info = True


def complete_call(prefix: str, base: str, key: str, model: str, messages: list, **extra: object) -> object:
    """The first answer with a whole call; the model's words are random."""
    for seed in range(30):
        answer = litellm.completion(
            model=f"{prefix}/{model}",
            api_base=base,
            api_key=key,
            messages=messages,
            tools=[READ],
            seed=seed,
            temperature=1,
            max_tokens=300,
            **extra,
        )
        if answer.choices[0].finish_reason == "tool_calls":
            return answer
    raise SystemExit(f"{prefix}: no seed led to a whole call")


def talk(prefix: str, base: str, key: str, model: str) -> dict:
    messages: list = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is in src?"},
    ]
    # litellm turns `required` into a user message for moonshot, and the random model then need not call
    extra = {} if prefix == "moonshot" else {"tool_choice": "required"}
    first = complete_call(prefix, base, key, model, messages, **extra)
    message = first.choices[0].message
    messages.append(message.model_dump())
    for call in message.tool_calls:
        assert isinstance(json.loads(call.function.arguments), dict)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "main.py"})
    asked = {
        "model": f"{prefix}/{model}",
        "api_base": base,
        "api_key": key,
        "messages": messages,
        "tools": [READ],
        "max_tokens": 40,
        "temperature": 1,
        "seed": 3,
    }
    second = litellm.completion(**asked)
    pieces = {"reasoning_content": "", "content": ""}
    usage = None
    for chunk in litellm.completion(**asked, stream=True, stream_options={"include_usage": True}):
        usage = getattr(chunk, "usage", None) or usage
        for name in pieces if chunk.choices else ():
            pieces[name] += getattr(chunk.choices[0].delta, name, None) or ""
    return {
        "calls": [call.function.name for call in message.tool_calls],
        "reasoning": getattr(message, "reasoning_content", None),
        "prompt_tokens": first.usage.prompt_tokens,
        "cached_tokens": second.usage.prompt_tokens_details.cached_tokens,
        "told": {name: getattr(second.choices[0].message, name, None) or "" for name in pieces},
        "streamed": pieces,
        "streamed_usage": usage.completion_tokens if usage else None,
    }


def error_name(base: str, key: str) -> str:
    try:
        litellm.completion(
            model="openai/nothing", api_base=base, api_key=key, messages=[{"role": "user", "content": "x"}]
        )
    except Exception as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    url, secret, name = sys.argv[1:]
    said = {prefix: talk(prefix, url, secret, name) for prefix in ("openai", "hosted_vllm", "moonshot")}
    print(json.dumps({"said": said, "error": error_name(url, secret)}))
