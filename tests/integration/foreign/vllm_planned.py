"""Runs inside vLLM's own environment: a server whose model says what a plan tells it to.

    python vllm_planned.py FOLDER PLAN TEXTS...

FOLDER gets a tiny random Llama with a tokenizer trained on TEXTS that knows K3's markers. PLAN is a JSON list
of answers, one for each request; a logits processor forces their tokens. Scheduler, detokeniser, parsers and
HTTP are vLLM's. Prints one line of JSON with the URL when it answers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = 8000
MODEL = "kimi-k3-planned"
SPECIALS = ("[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "[PAD]")
TEMPLATE = """{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}
{%- for message in messages -%}
<|open|>message role="{{ message.role }}"<|sep|>{{ message.reasoning }}{{ message.content }}
{%- for call in message.tool_calls or [] -%}{{ call.function | tojson }}{%- endfor -%}
<|close|>message<|sep|>
{%- endfor -%}
<|open|>message role="assistant"<|sep|><|open|>think<|sep|>"""


def make_model(folder: Path, texts: list[str]) -> None:
    """Everything but weights, which vLLM makes up."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(
        texts,
        trainers.BpeTrainer(
            vocab_size=1500, show_progress=False, special_tokens=list(SPECIALS), initial_alphabet=alphabet
        ),
    )
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end_of_msg|>"})
    )
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        "bos_token_id": SPECIALS.index("[BOS]"), "eos_token_id": SPECIALS.index("<|end_of_msg|>"),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "template.jinja").write_text(TEMPLATE)


def _planned() -> type:
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor  # type: ignore[import-not-found]

    class Planned(AdapterLogitsProcessor):
        """Request number N says answer number N of the plan."""

        def __init__(self, *args: Any) -> None:
            from tokenizers import Tokenizer  # type: ignore[import-not-found]

            super().__init__(*args)
            tokenizer = Tokenizer.from_file(os.environ["PLANNED_TOKENIZER"])
            answers = json.loads(Path(os.environ["PLANNED_ANSWERS"]).read_text())
            end = tokenizer.token_to_id("<|end_of_msg|>")
            self._plans = [[*tokenizer.encode(answer).ids, end] for answer in answers]
            self._next = 0

        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> Callable[[list[int], Any], Any]:
            plan = self._plans[min(self._next, len(self._plans) - 1)]
            self._next += 1

            def force(output_ids: list[int], logits: Any) -> Any:
                wanted = plan[min(len(output_ids), len(plan) - 1)]
                logits[:] = float("-inf")
                logits[wanted] = 0.0
                return logits

            return force

    return Planned


def __getattr__(name: str) -> type:
    """vLLM asks for the class by name; the file is also run where nothing of vLLM should be loaded."""
    if name == "Planned":
        return _planned()
    raise AttributeError(name)


def main() -> None:
    folder, plan, texts = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    make_model(folder, texts)
    here = str(Path(__file__).resolve().parent)
    environ = {
        **os.environ, "PYTHONPATH": here, "PLANNED_ANSWERS": plan,
        "PLANNED_TOKENIZER": str(folder / "tokenizer.json"), "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1", "DO_NOT_TRACK": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder),
        "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(PORT), "--load-format", "dummy",
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "16384", "--max-num-seqs", "2",
        "--chat-template", str(folder / "template.jinja"), "--enable-auto-tool-choice",
        "--tool-call-parser", "kimi_k3", "--reasoning-parser", "kimi_k3",
        "--logits-processors", "vllm_planned:Planned", "--enable-prompt-tokens-details",
    ]  # fmt: skip
    server = subprocess.Popen(command, env=environ, stdout=sys.stderr, cwd=folder)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    url = f"http://127.0.0.1:{PORT}"
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except OSError:
            time.sleep(1)
            continue
        print(json.dumps({"url": f"{url}/v1"}), flush=True)
        break
    sys.exit(server.wait())


if __name__ == "__main__":
    main()
