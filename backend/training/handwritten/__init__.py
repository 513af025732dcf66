from k3agent.backend.training.handwritten.load import load_tasks

__all__ = ["load_tasks"]
