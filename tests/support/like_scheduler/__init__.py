"""Random clusters and pods, decided by kube-scheduler and, on the very objects that its API server stored, by us."""

from .device_scenes import device_scene
from .node_scenes import node_scene, preference_scene
from .scene import Scene
from .trial import Trial, Verdict

__all__ = ["Scene", "Trial", "Verdict", "device_scene", "node_scene", "preference_scene"]
