"""A trace as data: the nodes of a cluster, and the pods that arrive, from tables in CSV and logs in JSON.

The columns are those of the openb trace (cluster-trace-gpu-v2023): ``sn``, ``cpu_milli``, ``memory_mib``, ``gpu`` and
``model`` of nodes; ``name``, ``cpu_milli``, ``memory_mib``, ``num_gpu``, ``gpu_milli`` and ``gpu_spec`` of pods. Others
are ignored. ``name`` may be said for ``sn``; memory, model, ``gpu_milli`` and ``gpu_spec`` may be left out. Nodes may
also come from Philly's list of machines: ``machineId``, ``number of GPUs``, and ``single GPU mem``, which is taken for
the model; of CPU and memory it says nothing.

Rows may also be jobs, of Acme and Helios in CSV and of Philly in JSON. A job on several nodes becomes as many
pods, which come as single ones. Acme's ``trace_kalos.csv`` and ``trace_seren.csv`` and Helios' ``cluster_log.csv`` have
the columns ``job_id``, ``node_num``, ``gpu_num`` (of all nodes together) and ``cpu_num``. Philly's ``cluster_job_log``
says on which machines each attempt of a job had which GPUs; the first attempt counts, and jobs without one are left
out. It says nothing of CPU and memory.
"""

from __future__ import annotations

import csv
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

WHOLE_MILLI: Final = 1000
"""Thousandths of a GPU."""
MOST_GPUS: Final = 64
"""GPUs of one node, and of one pod."""
LARGEST_CELL_VALUE: Final = 10**12
"""No number of a table is larger."""
NODE_COLUMNS: Final = ("cpu_milli", "gpu")
MACHINE_COLUMNS: Final = ("machineId", "number of GPUs")
POD_COLUMNS: Final = ("name", "cpu_milli", "num_gpu")


class TraceError(Exception):
    """A table that cannot be read: the line, the column, and what is expected there."""

    def __init__(self, line: int, column: str, text: str) -> None:
        super().__init__(f"line {line}, column {column}: {text}")


class TraceNode(NamedTuple):
    """A node with nothing on it."""

    name: str
    cpu: int
    """Thousandths of a core."""
    memory: int
    """MiB."""
    gpus: int
    model: str


class Shape(NamedTuple):
    """What scores look at of a pod."""

    cpu: int
    """Thousandths of a core."""
    milli: int
    """Thousandths of each GPU; 0 without GPUs."""
    gpus: int
    spec: str
    """Models that may be used, separated by ``|``; empty: any."""

    @property
    def total(self) -> int:
        """Thousandths of GPUs altogether."""
        return self.milli * self.gpus

    @property
    def is_share(self) -> bool:
        """Whether the pod takes a part of one GPU."""
        return 0 < self.milli < WHOLE_MILLI

    def accepts(self, model: str) -> bool:
        """Whether GPUs of this model may be used."""
        models = [it for it in self.spec.split("|") if it]
        return not models or model in models


class TracePod(NamedTuple):
    """A pod of a trace."""

    name: str
    memory: int
    """MiB."""
    shape: Shape


def read_nodes(lines: Iterable[str]) -> list[TraceNode]:
    """The nodes of a table, in the order of their names. Raises TraceError."""
    iterator = iter(lines)
    first = next(iterator, "")
    if first.startswith("machineId"):
        return _machines(chain([",".join(it.strip() for it in first.split(","))], iterator))
    nodes: dict[str, TraceNode] = {}
    for row in rows(chain([first], iterator), NODE_COLUMNS):
        column = "sn" if row.text("sn") else "name"
        name = row.new_name(column, nodes)
        gpus = row.number("gpu", most=MOST_GPUS)
        nodes[name] = TraceNode(
            name, row.number("cpu_milli"), _memory(row, LARGEST_CELL_VALUE), gpus, row.text("model")
        )
    return sorted(nodes.values())


def _machines(lines: Iterable[str]) -> list[TraceNode]:
    nodes: dict[str, TraceNode] = {}
    for row in rows(lines, MACHINE_COLUMNS):
        name, gpus = row.new_name("machineId", nodes), row.number("number of GPUs", most=MOST_GPUS)
        nodes[name] = TraceNode(name, 0, LARGEST_CELL_VALUE, gpus, row.text("single GPU mem"))
    return sorted(nodes.values())


def read_pods(lines: Iterable[str]) -> list[TracePod]:
    """The pods of a table, in the order of their names. Raises TraceError."""
    pods: dict[str, TracePod] = {}
    for row in rows(lines, POD_COLUMNS):
        name = row.new_name("name", pods)
        gpus = row.number("num_gpu", most=MOST_GPUS)
        milli = row.number("gpu_milli", most=WHOLE_MILLI) if gpus == 1 and row.text("gpu_milli") else WHOLE_MILLI
        if not milli:
            raise row.error("gpu_milli", "0 thousandths of a GPU; write 1 to 1000, or num_gpu 0 for a pod without GPU")
        shape = Shape(row.number("cpu_milli"), milli if gpus else 0, gpus, row.text("gpu_spec") if gpus else "")
        pods[name] = TracePod(name, _memory(row, 0), shape)
    return sorted(pods.values())


class Row(NamedTuple):
    """A row of a table. Its methods raise TraceError."""

    line: int
    values: Mapping[str, str | None]

    def text(self, column: str) -> str:
        """What stands in a column; empty if nothing does."""
        return (self.values.get(column) or "").strip()

    def number(self, column: str, most: int = LARGEST_CELL_VALUE) -> int:
        """A whole number up to ``most``."""
        text = self.text(column)
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_CELL_VALUE)) else -1
        if not 0 <= number <= most:
            raise self.error(column, f"{text!r} is not a whole number from 0 to {most}; correct or delete the row")
        return number

    def new_name(self, column: str, known: Container[str]) -> str:
        """A name that is not among the known ones."""
        name = self.text(column)
        if not name:
            raise self.error(column, "the name is missing; write one, or delete the row")
        if name in known:
            raise self.error(column, f"an earlier row is named {name!r} as well; rename one of them")
        return name

    def error(self, column: str, text: str) -> TraceError:
        """What is wrong in a column."""
        return TraceError(self.line, column, text)


def _memory(row: Row, missing: int) -> int:
    return row.number("memory_mib") if row.text("memory_mib") else missing


def rows(lines: Iterable[str], needed: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a table with these columns. Raises TraceError."""
    reader = csv.DictReader(lines, strict=True)
    try:
        columns = reader.fieldnames or ()
        for column in needed:
            if column not in columns:
                raise TraceError(1, column, f"it is missing; the first line names {', '.join(columns) or 'no columns'}")
        line = 1
        for values in reader:
            line = reader.line_num
            if None in values:
                raise TraceError(line, columns[-1], "there are more values than columns; delete those behind it")
            yield Row(line, values)
        if line == 1:
            raise TraceError(2, columns[0], "the table has no rows; it needs at least one")
    except csv.Error as error:
        raise TraceError(reader.line_num, "?", f"no CSV ({error}); close the quotation marks") from None


JOB_COLUMNS: Final = ("job_id", "gpu_num", "cpu_num")
MOST_JOB_NODES: Final = 10_000
MOST_JOB_GPUS: Final = 100_000
GB_FACTOR: Final = 1024
"""MiB of what a table calls a GB."""


class _Machine(Struct):
    gpus: list[str] = []


class _Attempt(Struct):
    detail: list[_Machine] = []


class _Job(Struct):
    jobid: str
    attempts: list[_Attempt] = []


class JobLogError(TraceError):
    """A log in JSON that cannot be read; the message says where."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


def read_trace(lines: Iterable[str]) -> list[TracePod]:
    """The pods of a table of pods, a table of jobs, or a log of jobs, in the order of names. Raises TraceError."""
    iterator = iter(lines)
    first = next(iterator, "")
    every = chain([first], iterator)
    if first.lstrip().startswith("["):
        return sorted(_of_log("".join(every)))
    if {"job_id", "gpu_num"} <= set(first.strip().split(",")):
        return sorted(_of_table(every))
    return read_pods(every)


def _of_table(lines: Iterable[str]) -> Iterator[TracePod]:
    names: set[str] = set()
    for row in rows(lines, JOB_COLUMNS):
        name = row.new_name("job_id", names)
        names.add(name)
        yield from _of_row(name, row)


def _of_row(name: str, row: Row) -> Iterator[TracePod]:
    nodes = row.number("node_num", most=MOST_JOB_NODES) if row.text("node_num") else 1
    gpus, cores = row.number("gpu_num", most=MOST_JOB_GPUS), row.number("cpu_num")
    count = max(1, nodes)
    if gpus > MOST_GPUS * count:
        raise row.error("gpu_num", f"{gpus}, which is more than {MOST_GPUS} on each node; correct or delete the row")
    memory = row.number("mem_per_pod_GB") * GB_FACTOR if row.text("mem_per_pod_GB") else 0
    for number in range(count):
        its = gpus // count + (number < gpus % count)
        yield _pod(name, number, cores * 1000 // count, memory, its)


def _of_log(text: str) -> Iterator[TracePod]:
    try:
        jobs = msgspec.json.decode(text, type=list[_Job])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise JobLogError(f"not a log of jobs in JSON: {error}") from None
    for job in jobs:
        machines = job.attempts[0].detail if job.attempts else []
        for number, machine in enumerate(machines):
            if len(machine.gpus) > MOST_GPUS:
                raise JobLogError(f"job {job.jobid}: {len(machine.gpus)} GPUs on one machine, at most {MOST_GPUS}")
            yield _pod(job.jobid, number, 0, 0, len(machine.gpus))


def _pod(job: str, number: int, cpu: int, memory: int, gpus: int) -> TracePod:
    return TracePod(f"{job}-{number}", memory, Shape(cpu, WHOLE_MILLI if gpus else 0, gpus, ""))
