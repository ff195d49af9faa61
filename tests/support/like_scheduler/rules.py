"""Random rules of pods about nodes and about each other. Few values, so that they often meet."""

from __future__ import annotations

from random import Random

from .scene import NAMESPACES, Json

LABELS = {"app": ["a", "b", "c"], "tier": ["x", "y"], "rev": ["1", "2"]}
NODE_LABELS = {"zone": ["z1", "z2", "z3"], "rack": ["r1", "r2"], "disk": ["ssd", "hdd"], "gen": ["1", "3", "x"]}
HOST = "kubernetes.io/hostname"
_KEYS = ("zone", "zone", "rack", "disk", HOST, HOST, "other")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class Rules:
    """``selects_no_labels``: namespace selectors may be met by a namespace without labels.

    kube-scheduler 1.36 takes such selectors of the pod that it places for all namespaces (NR-01).
    """

    def __init__(self, random: Random, *, selects_no_labels: bool) -> None:
        self.random = random
        self._of_namespaces = _OPERATORS if selects_no_labels else ("In", "Exists")

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def labels(self, options: dict[str, list[str]], share: float) -> Json:
        return {key: self.random.choice(values) for key, values in options.items() if self.chance(share)}

    def requirement(self, key: str, values: list[str], operators: tuple[str, ...] = _OPERATORS) -> Json:
        operator = self.random.choice(operators)
        made: Json = {"key": key, "operator": operator}
        if operator in ("In", "NotIn"):
            made["values"] = self.random.sample(values, self.random.randint(1, min(2, len(values))))
        elif operator in ("Gt", "Lt"):
            made["values"] = [self.random.choice(["0", "1", "2"])]
        return made

    def label_selector(self) -> Json:
        made: Json = {}
        if self.chance(0.6):
            made["matchLabels"] = {"app": self.random.choice(LABELS["app"])}
        if self.chance(0.4):
            key = self.random.choice(list(LABELS))
            made["matchExpressions"] = [self.requirement(key, LABELS[key])]
        return made

    def _selected(self, *fields: str) -> Json:
        """A label selector most of the time, and label keys beside it that it does not name."""
        if self.chance(0.05):
            return {}
        selector = self.label_selector()
        named = {*selector.get("matchLabels", {}), *(it["key"] for it in selector.get("matchExpressions", []))}
        free = [key for key in LABELS if key not in named]
        keys = {field: [free.pop()] for field in fields if free and self.chance(0.12)}
        return {"labelSelector": selector, **keys}

    def term(self) -> Json:
        made = {"topologyKey": self.random.choice(_KEYS), **self._selected("matchLabelKeys", "mismatchLabelKeys")}
        if self.chance(0.2):
            made["namespaces"] = self.random.sample(NAMESPACES, self.random.randint(1, 2))
        if self.chance(0.3):
            wanted = [self.requirement("team", ["t1", "t2"], self._of_namespaces)] if self.chance(0.8) else []
            made["namespaceSelector"] = {"matchExpressions": wanted}
        return made

    def terms(self) -> list[Json]:
        return [self.term() for _ in range(self.random.choice((1, 1, 1, 2)))]

    def node_term(self) -> Json:
        key = self.random.choice(list(NODE_LABELS))
        operators = (*_OPERATORS, "Gt", "Lt") if key == "gen" else _OPERATORS
        made: Json = {"matchExpressions": [self.requirement(key, NODE_LABELS[key], operators)]}
        if self.chance(0.15):
            wanted = {"key": "metadata.name", "operator": self.random.choice(("In", "NotIn")), "values": ["n1"]}
            made["matchFields"] = [wanted]
        return made

    def spread(self, when: str) -> list[Json]:
        """Constraints, one per topology key."""
        made: dict[str, Json] = {}
        for _ in range(self.random.choice((1, 1, 2, 3))):
            key = self.random.choice(_KEYS)
            about = {"maxSkew": self.random.choice((1, 1, 1, 2, 3)), "topologyKey": key, "whenUnsatisfiable": when}
            if when == "DoNotSchedule" and self.chance(0.25):
                about["minDomains"] = self.random.randint(1, 4)
            for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
                if self.chance(0.25):
                    about[policy] = self.random.choice(("Honor", "Ignore"))
            made[key] = {**about, **self._selected("matchLabelKeys")}
        return list(made.values())

    def taints(self, *effects: str) -> list[Json]:
        names = self.random.sample(["k1", "k2"], self.random.randint(1, 2))
        return [{"key": it, "value": self.value(), "effect": self.random.choice(effects)} for it in names]

    def tolerations(self) -> list[Json]:
        made = []
        for _ in range(self.random.randint(0, 2)):
            one: Json = {"operator": "Exists"} if self.chance(0.4) else {"value": self.value()}
            if self.chance(0.8) or "operator" not in one:
                one["key"] = self.random.choice(("k1", "k2", "node.kubernetes.io/unschedulable"))
            if self.chance(0.5):
                one["effect"] = self.random.choice(("NoSchedule", "NoExecute", "PreferNoSchedule"))
            made.append(one)
        return made

    def value(self) -> str:
        return self.random.choice(("v1", "v2"))
