"""Traces whose rows are jobs, as pods: those of Acme and Helios in CSV, and Philly's log in JSON.

A job on several nodes becomes as many pods, which come as single ones. Acme's ``trace_kalos.csv`` and
``trace_seren.csv`` and Helios' ``cluster_log.csv`` have the columns ``job_id``, ``node_num``, ``gpu_num`` (of all nodes
together) and ``cpu_num``. Philly's ``cluster_job_log`` says on which machines each attempt of a job had which GPUs; the
first attempt counts, and jobs without one are left out. It says nothing of CPU and memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec
from msgspec import Struct

from .trace import MOST_GPUS, WHOLE_MILLI, Row, Shape, TraceError, TracePod, read_pods, rows

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
