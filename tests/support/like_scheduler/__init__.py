"""Random clusters and pods, decided by kube-scheduler and, on the very objects that its API server stored, by us."""

from like_scheduler.scenes import Scene, device_scene, node_scene, preference_scene

from .trial import Trial, Verdict

__all__ = ["Scene", "Trial", "Verdict", "device_scene", "node_scene", "preference_scene"]
