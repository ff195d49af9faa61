"""A trace as data: the nodes of a cluster, and the pods that arrive, in the order of one run.

Traces are tables in CSV and logs in JSON.

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

The order of a run follows from the seed alone, as does the order of nodes that decides among equals. The pods of the
trace are shuffled. Then pods are removed, or drawn again from the trace, until they ask for ``inflate`` times the GPUs
of the cluster; 0 leaves them as they are. The rules, the odd ones included, are the rules of the published runs. These
have no gangs.

The order of a published run follows from its seed by the generator of Go's ``math/rand``, so ``GoRandom`` repeats it.
It is an additive lagged Fibonacci generator: y[k] = y[k-607] + y[k-273] modulo 2**64. A seed is mixed with a table of
607 numbers, which is the generator's own state after 7.8e12 steps from seed 1. The table is computed here rather than
listed: the state after N steps is x**N modulo x**607 - x**334 - 1, in the coefficients of that polynomial.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Final, NamedTuple, TypeVar

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


MOST_SEEDS: Final = 10_000
LARGEST_SEED: Final = 2**31 - 1


def read_seeds(text: str) -> list[int]:
    """The seeds, each once. Raises ValueError, which says what is expected."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (_is_seed(first) and (not dash or _is_seed(last))):
            raise ValueError(
                f"{part!r} is not a seed; write a number from 0 to {LARGEST_SEED}, or a range such as 42-51"
            )
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise ValueError(f"{part!r} is empty; write the smaller number first")
        if len(seeds) + len(numbers) > MOST_SEEDS:
            raise ValueError(f"more than {MOST_SEEDS} seeds; each is a run of some seconds, give fewer")
        seeds.update(dict.fromkeys(numbers))
    return list(seeds)


def _is_seed(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_SEED)) and int(text) <= LARGEST_SEED


STATE_WORDS: Final = 607
LAG_WORDS: Final = 273
STEPS: Final = 7_800_000_000_000
WORD_MASK: Final = (1 << 64) - 1
LEHMER_FACTOR: Final = 48271
LEHMER_MODULUS: Final = (1 << 31) - 1
SEED_OF_ZERO: Final = 89482311
"""What Go takes for seed 0."""
SKIPPED_DRAWS: Final = 20
"""Numbers of the Lehmer generator before the first that counts."""
SLOT_BYTES: Final = 18
"""A coefficient of a product: below 2**138."""
Item = TypeVar("Item")


class GoRandom:
    """The stream of one seed."""

    def __init__(self, seed: int) -> None:
        start = seed % LEHMER_MODULUS or SEED_OF_ZERO
        self._words = [mixed ^ word for mixed, word in zip(_mixed(start, 40), _table(), strict=True)]
        self._tap = 0
        self._feed = STATE_WORDS - LAG_WORDS

    def _uint64(self) -> int:
        self._tap = (self._tap or STATE_WORDS) - 1
        self._feed = (self._feed or STATE_WORDS) - 1
        word = (self._words[self._feed] + self._words[self._tap]) & WORD_MASK
        self._words[self._feed] = word
        return word

    def int63(self) -> int:
        """Go's ``Int63``; ``Int`` and ``Float64`` take as much of the stream."""
        return self._uint64() & (WORD_MASK >> 1)

    def intn(self, below: int) -> int:
        """Go's ``Intn`` for numbers below 2**31."""
        limit = (1 << 31) - 1 - (1 << 31) % below
        while (drawn := self.int63() >> 32) > limit:
            pass
        return drawn % below

    def permutation(self, length: int) -> list[int]:
        """Go's ``Perm``."""
        order = [0] * length
        for number in range(length):
            place = self.intn(number + 1)
            order[number] = order[place]
            order[place] = number
        return order

    def shuffle(self, items: list[Item]) -> None:
        """Go's ``Shuffle``."""
        for last in range(len(items) - 1, 0, -1):
            place = self._below(last + 1)
            items[last], items[place] = items[place], items[last]

    def _below(self, limit: int) -> int:
        """As ``Shuffle`` draws: by multiplication."""
        product = (self.int63() >> 31) * limit
        while product & 0xFFFFFFFF < (1 << 32) % limit:
            product = (self.int63() >> 31) * limit
        return product >> 32


def _mixed(start: int, shift: int) -> Iterator[int]:
    """The words of a seed, each of three numbers: the first moved by ``shift`` bits, the second by half of that."""
    lehmer = start
    for _ in range(SKIPPED_DRAWS):
        lehmer = lehmer * LEHMER_FACTOR % LEHMER_MODULUS
    for _ in range(STATE_WORDS):
        word = 0
        for moved in (shift, shift // 2, 0):
            lehmer = lehmer * LEHMER_FACTOR % LEHMER_MODULUS
            word ^= lehmer << moved
        yield word & WORD_MASK


@cache
def _table() -> Sequence[int]:
    power = _power(STEPS)
    words = list(_mixed(1, 20))
    # words[place] is y[334 - place modulo 607]; in order of time y[-606] comes first
    past = [words[(STATE_WORDS - LAG_WORDS - step) % STATE_WORDS] for step in range(1 - STATE_WORDS, 1)]
    for _ in range(STATE_WORDS):
        past.append((past[-STATE_WORDS] + past[-LAG_WORDS]) & WORD_MASK)
    table = [0] * STATE_WORDS
    for offset in range(STATE_WORDS):
        word = sum(factor * past[offset + number] for number, factor in enumerate(power)) & WORD_MASK
        step = STEPS + 1 - STATE_WORDS + offset
        table[(STATE_WORDS - LAG_WORDS - step) % STATE_WORDS] = word
    return table


def _power(exponent: int) -> list[int]:
    """The coefficients of x**exponent."""
    result = [1]
    for bit in f"{exponent:b}":
        result = _reduced(_square(result))
        if bit == "1":
            result = _reduced([0, *result])
    return result + [0] * (STATE_WORDS - len(result))


def _square(polynomial: Sequence[int]) -> list[int]:
    packed = int.from_bytes(b"".join(it.to_bytes(SLOT_BYTES, "little") for it in polynomial), "little")
    size = SLOT_BYTES * (2 * len(polynomial) - 1)
    found = (packed * packed).to_bytes(size, "little")
    return [int.from_bytes(found[at : at + SLOT_BYTES], "little") for at in range(0, size, SLOT_BYTES)]


def _reduced(polynomial: list[int]) -> list[int]:
    for degree in range(len(polynomial) - 1, STATE_WORDS - 1, -1):
        polynomial[degree - LAG_WORDS] += polynomial[degree]
        polynomial[degree - STATE_WORDS] += polynomial[degree]
    return [it & WORD_MASK for it in polynomial[:STATE_WORDS]]


LOG_DRAWS: Final = 1
"""Numbers that the published runs draw for a log line before they shuffle."""
INFORMER_DRAWS: Final = 10
"""Numbers that their ten informers draw for watch time-outs, after the pods and before the order of the nodes."""
POPULAR_PERCENT: Final = 95
"""Typical are the commonest pods, until they are so many of all."""


class TypicalPod(NamedTuple):
    """A kind of pods of the trace, and its part of the typical ones."""

    shape: Shape
    part: float


class Workload(NamedTuple):
    pods: Sequence[TracePod]
    """The trace, in the order of names: the mix that is known beforehand."""
    arrivals: Sequence[TracePod]
    nodes: Sequence[TraceNode]
    """In the order in which equals are taken."""
    typical: Sequence[TypicalPod]
    random: GoRandom
    """Where the stream is when the first pod arrives."""
    has_gangs: bool = False
    """Whether a pod of several GPUs is a gang: as many pods of one GPU, all at once or none."""


def workload(
    pods: Sequence[TracePod], nodes: Sequence[TraceNode], seed: int, inflate: float, *, has_gangs: bool = False
) -> Workload:
    """The run of a seed. ``pods`` and ``nodes`` are in the order of their names."""
    random = GoRandom(seed)
    for _ in range(LOG_DRAWS):
        random.int63()
    arrivals = list(pods)
    random.shuffle(arrivals)
    if inflate:
        _inflate(arrivals, pods, inflate * WHOLE_MILLI * sum(node.gpus for node in nodes), random)
    for _ in range(INFORMER_DRAWS):
        random.int63()
    places = random.permutation(len(nodes))
    ordered = [node for _, node in sorted(zip(places, nodes, strict=True))]
    known = [member for pod in pods for member in members(pod)] if has_gangs else pods
    return Workload(known, arrivals, ordered, typical_pods(known), random, has_gangs)


def members(pod: TracePod) -> list[TracePod]:
    """The pods of one GPU that do the work of a pod of several; another pod alone."""
    gpus = pod.shape.gpus
    if gpus < 2:
        return [pod]
    shape = pod.shape._replace(cpu=pod.shape.cpu // gpus, gpus=1)
    return [TracePod(f"{pod.name}-{number}", pod.memory // gpus, shape) for number in range(gpus)]


def _inflate(arrivals: list[TracePod], pods: Sequence[TracePod], goal: float, random: GoRandom) -> None:
    """Pods are either drawn at random and removed, or drawn from the trace and added."""
    requested = sum(pod.shape.total for pod in arrivals)
    if requested > goal:
        while requested > goal:
            requested -= arrivals.pop(random.intn(len(arrivals))).shape.total
    elif requested:
        while requested + (drawn := pods[random.intn(len(pods))]).shape.milli <= goal:
            arrivals.append(drawn)
            requested += drawn.shape.total


def typical_pods(pods: Sequence[TracePod]) -> list[TypicalPod]:
    """The commonest kinds, the commonest first."""
    counts = Counter(pod.shape for pod in pods)
    ranked = sorted(counts.items(), key=lambda it: (it[1], it[0]), reverse=True)
    total = float(len(pods))
    taken: list[tuple[Shape, int]] = []
    covered = 0.0
    for shape, count in ranked:
        if covered >= POPULAR_PERCENT * total / 100.0:
            break
        taken.append((shape, count))
        covered += count
    everything = len(taken) == len(ranked)
    return [
        TypicalPod(shape, count / total if everything else count / total / (covered / total)) for shape, count in taken
    ]
