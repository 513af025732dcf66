"""A Kubernetes manifest of the same server: a Deployment, or a LeaderWorkerSet where it takes several nodes.

YAML is written as the JSON that it contains, line by line: no value needs another escape than JSON's.
"""

import json
from typing import Any

from k3agent.backend.errors import BackendError
from k3agent.backend.handover.asked import Asked, Family, Launch

IMAGES = {Family.K3: "vllm/vllm-openai:kimi-k3"}
IMAGE = "vllm/vllm-openai:latest"
NAME = "k3agent-model"
SECRET = "k3agent-model-key"
LEADER = "$(LWS_LEADER_ADDRESS)"
INDEX = "$(LWS_WORKER_INDEX)"
START_S = 3600


def manifest(asked: Asked, launch: Launch) -> str:
    """All objects as YAML documents. `launch` was made for the host 0.0.0.0."""
    labels = {"app": NAME}
    if asked.nodes == 1:
        workload = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": NAME, "labels": labels},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": _pod(asked, launch, 0)},
            },
        }
    else:
        leader = {**labels, "role": "leader"}
        workload = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": NAME, "labels": labels},
            "spec": {
                "replicas": 1,
                "leaderWorkerTemplate": {
                    "size": asked.nodes,
                    "restartPolicy": "RecreateGroupOnPodRestart",
                    "leaderTemplate": {"metadata": {"labels": leader}, "spec": _pod(asked, launch, 0)},
                    "workerTemplate": {"metadata": {"labels": labels}, "spec": _pod(asked, launch, 1)},
                },
            },
        }
        labels = leader
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {
            "selector": labels,
            "ports": [{"name": "http", "port": asked.port, "targetPort": asked.port}],
        },
    }
    return "---\n".join("\n".join(_yaml(part)) + "\n" for part in (workload, service))


def _pod(asked: Asked, launch: Launch, rank: int) -> dict[str, Any]:
    words = _by_node(launch.commands[rank], asked, rank)
    key = {"name": SECRET, "key": "key"}
    environ: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in launch.environ.items()]
    environ.append({"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": key}})
    per_node = asked.layout.num_gpus // asked.nodes
    resource = "amd.com/gpu" if asked.gpu and asked.gpu.name.startswith("MI") else "nvidia.com/gpu"
    container: dict[str, Any] = {
        "name": "engine",
        "image": IMAGES.get(asked.model.family, IMAGE),
        "command": words,
        "env": environ,
        "resources": {"limits": {resource: per_node}},
        "volumeMounts": [
            {"name": "weights", "mountPath": "/root/.cache/huggingface"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if rank == 0:
        check = {"httpGet": {"path": "/health", "port": asked.port}, "periodSeconds": 10}
        container["ports"] = [{"containerPort": asked.port}]
        container["startupProbe"] = {**check, "failureThreshold": START_S // 10}
        container["readinessProbe"] = check
    volumes: list[dict[str, Any]] = [
        {"name": "weights", "persistentVolumeClaim": {"claimName": "k3agent-weights"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    # Nothing of a model that runs foreign code needs the cluster's own API.
    return {"automountServiceAccountToken": False, "containers": [container], "volumes": volumes}


def _by_node(words: list[str], asked: Asked, rank: int) -> list[str]:
    """The command as all workers of a set can have it: their numbers come from the set."""
    words = [LEADER if word == asked.master and asked.nodes > 1 else word for word in words]
    if rank and asked.nodes > 2:
        for flag in ("--node-rank", "--data-parallel-start-rank"):
            if flag in words:
                at = words.index(flag) + 1
                if words[at] != "1":
                    raise BackendError(
                        f"a manifest for {asked.nodes} nodes needs one data-parallel group on each;"
                        f" give --dp {asked.nodes}"
                    )
                words[at] = INDEX
    return words


def _yaml(value: Any, depth: int = 0) -> list[str]:
    """Lines of a value; scalars as JSON, of which YAML is a superset."""
    space = "  " * depth
    lines: list[str] = []
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict | list) and item:
                lines += [f"{space}{key}:", *_yaml(item, depth + 1)]
            else:
                lines.append(f"{space}{key}: {json.dumps(item)}")
        return lines
    for item in value:
        inner = _yaml(item, depth + 1) if isinstance(item, dict | list) else [f"{space}  {json.dumps(item)}"]
        lines += [f"{space}- {inner[0].lstrip()}", *inner[1:]]
    return lines
