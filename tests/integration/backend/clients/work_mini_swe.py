"""Run with an interpreter that has mini-swe-agent: its agent works on a task with the server's model.

Arguments: base URL, key, model. The model's words are random, so its commands are recorded, not run.
Prints the trajectory's figures as JSON.
"""

# its packages live in another environment, so their types are not known here
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
os.environ["MSWEA_SILENT_STARTUP"] = "1"

from minisweagent.agents.default import DefaultAgent
from minisweagent.models.litellm_model import LitellmModel


class RecordingEnvironment:
    """Takes commands and answers as a shell would, without one."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def execute(self, action: dict, cwd: str = "") -> dict:
        self.commands.append(action["command"])
        return {"output": "main.py\nREADME.md\n", "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **kwargs: object) -> dict:
        return kwargs

    def serialize(self) -> dict:
        return {}


class SeededModel(LitellmModel):
    """Each question with another seed: a cut call would be cut again with the same one."""

    seed = 0

    def _query(self, messages: list, **kwargs: object) -> object:
        self.seed += 1
        return super()._query(messages, seed=self.seed, **kwargs)


if __name__ == "__main__":
    url, key, name = sys.argv[1:]
    environment = RecordingEnvironment()
    model = SeededModel(
        model_name=f"openai/{name}",
        cost_tracking="ignore_errors",
        model_kwargs={
            "api_base": url,
            "api_key": key,
            "tool_choice": "required",
            "temperature": 1,
            "max_tokens": 200,
        },
    )
    agent = DefaultAgent(
        model,
        environment,
        system_template="You work in a repository.",
        instance_template="Please do this: {{task}}",
        step_limit=12,
        cost_limit=0,
        max_consecutive_format_errors=0,
    )
    end = agent.run("list the files")
    usages = [
        message["extra"]["response"]["usage"] for message in agent.messages if message["role"] == "assistant"
    ]
    print(
        json.dumps(
            {
                "end": end["exit_status"],
                "questions": agent.n_calls,
                "commands": environment.commands,
                "results": sum(message["role"] == "tool" for message in agent.messages),
                "cached": [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages],
                "prompt": [usage["prompt_tokens"] for usage in usages],
            }
        )
    )
