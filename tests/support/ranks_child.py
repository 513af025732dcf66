"""An engine on several ranks, for tests: `ranks_child.py FOLDER RANKS GROUPS` plays requests and prints what
came of them."""

import json
import random
import sys
from typing import Any

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine.engine import Engine
from k3agent.backend.engine.messages import Add, EngineSettings, Failed, Finished, Generated, SamplingParams
from k3agent.backend.engine.runner import Runner

NUM_PAGES, NUM_SLOTS = 20, 10
"""Equal whatever the ranks' shares of a state are, so that evictions fall alike."""


def play(engine: Engine) -> dict[str, Any]:
    """Three waves of requests; of each one is aborted and one preempted midway. Strangers in the second wave
    drive the first one out of the device, the third one comes back to it."""
    dice = random.Random(3)
    shared = [dice.randrange(250) for _ in range(100)]
    tokens: dict[str, list[int]] = {}
    ends: dict[str, Finished] = {}
    for wave in range(3):
        preempted = False
        for number in range(4):
            length = 300 if wave == 1 else 20 * number + 1
            prompt = shared * (wave != 1) + [dice.randrange(250) for _ in range(length)]
            # what follows a repetition is guessed, wrongly as a rule: states are rolled back
            prompt += prompt[:30]
            params = SamplingParams(temperature=0.8, seed=number, max_tokens=40, ignore_eos=True)
            engine.add(Add(request_id=f"{wave}-{number}", token_ids=prompt, params=params))
        while engine.has_work:
            for report in engine.step():
                assert not isinstance(report, Failed), report
                if isinstance(report, Generated):
                    tokens.setdefault(report.request_id, []).extend(report.token_ids)
                elif isinstance(report, Finished):
                    ends[report.request_id] = report
            if len(tokens.get(f"{wave}-1", [])) >= 5:
                engine.abort(f"{wave}-1")
            if not preempted and len(tokens.get(f"{wave}-2", [])) >= 10:
                preempted = True
                (running,) = (s for s in engine.scheduler.running if s.request_id == f"{wave}-2")
                engine.scheduler.preempt(running)
    return {
        "tokens": tokens,
        "reasons": {name: end.reason for name, end in ends.items()},
        "num_cached": {name: end.num_cached_by_tier for name, end in ends.items()},
        "num_draft": sum(end.num_draft for end in ends.values()),
        "num_preempted": sum(end.num_preempted for end in ends.values()),
    }


def main() -> None:
    """Print the outcome as JSON."""
    folder, ranks, groups = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    settings = EngineSettings(
        model_dir=folder,
        dtype="float64",
        threads=ranks,
        cache_bytes=8 << 20,
        tensor_parallel=ranks,
        expert_parallel=groups,
        speculation="prompt-lookup",
        host_cache_bytes=16 << 20,
    )
    runner, _ = Runner.load(settings)
    assert runner.num_pages >= NUM_PAGES and runner.num_slots >= NUM_SLOTS
    runner.num_pages, runner.num_slots = NUM_PAGES, NUM_SLOTS
    runner.max_model_len = NUM_PAGES * PAGE_SIZE // 2
    engine = Engine(runner, Tokenizer.from_dir(folder), settings)
    engine.attach_tiers()
    outcome = play(engine)
    print(json.dumps(outcome))
    engine.close()


if __name__ == "__main__":
    main()
