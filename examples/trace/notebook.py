# ---
# jupyter: {jupytext: {text_representation: {extension: .py, format_name: percent}}}
# ---
# %% [markdown]
# # How full does each policy make a cluster?
#
# A notebook as text: Jupyter with jupytext and editors open it cell by cell, and `python` runs it. It plays a made-up
# trace with four policies and several orders of the pods, and says how much of the GPUs each gives away.

# %%
"""Compare placement policies on a trace: `dra_simulator.trace.trace_frame` from two files to a table."""

import os
import runpy
from pathlib import Path

import numpy as np
from dra_simulator.trace import trace_frame

FOLDER = Path(os.environ.get("KOPF_DRA_TRACE", "."))
SEEDS = os.environ.get("KOPF_DRA_SEEDS", "1-5")
POLICIES = ("emptiest", "best-fit")

# %% [markdown]
# The trace: `nodes.csv` and `pods.csv`, written by the script beside this notebook. Take your own files instead.

# %%
runpy.run_path(str(Path(globals().get("__file__", "notebook.py")).with_name("full.py")))["main"](FOLDER)

# %% [markdown]
# The runs. `jobs=8` takes eight processes, `executor="dask://HOST:8786"` the workers of a Dask cluster; the numbers
# stay the same. With `pandas=None` the table is a DataFrame if pandas is installed.

# %%
table = trace_frame(FOLDER / "pods.csv", FOLDER / "nodes.csv", policies=POLICIES, seeds=SEEDS, pandas=False)

# %% [markdown]
# GPUs allocated when the pods have asked for all of them: mean, lowest and highest of the seeds.

# %%
at_full_demand = {}
for policy in POLICIES:
    chosen = (table["policy"] == policy) & (table["demand_percent"] == 100)
    at_full_demand[policy] = table["allocated_percent"][chosen]
    values = at_full_demand[policy]
    print(f"{policy:10} {np.mean(values):6.2f} %   from {np.min(values):.2f} to {np.max(values):.2f}")
