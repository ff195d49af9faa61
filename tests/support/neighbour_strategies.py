"""Labels and selectors that often meet, for properties of rules between pods."""

from __future__ import annotations

from hypothesis import strategies as st
from neighbour_oracle import Json

VALUES = st.sampled_from(["x", "x", "y"])
labels = st.fixed_dictionaries({"app": VALUES}, optional={"tier": VALUES})
node_labels = st.fixed_dictionaries({"zone": VALUES}, optional={"rack": VALUES})


@st.composite
def selectors(draw: st.DrawFn) -> Json:
    """One label most of the time, and any requirement now and then."""
    if draw(st.integers(0, 2)):
        return {"matchLabels": {"app": draw(VALUES)}}
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]))
    values = draw(st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2)) if operator.endswith("In") else []
    wish = {"key": draw(st.sampled_from(["app", "tier"])), "operator": operator, "values": values}
    return {"matchExpressions": [wish]}
