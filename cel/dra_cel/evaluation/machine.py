"""The precise evaluator: a small stack machine that decides the meaning and the cost of an expression.

Theory of operation
===================

The program
-----------
The assembler turns a checked tree into a list of instructions and the number of slots that they need. An instruction
is a function of the machine, made by the function of its name in ``dra_cel.evaluation.instructions`` with its operands
(a key, a slot, a label) bound. It returns the index of the next instruction, or None for the following one. There is
no Python recursion, so that nesting costs no Python stack.

The machine's state:

* ``stack``: values that wait for their use;
* ``slots``: loop variables, accumulators and the names of ``cel.bind``, one slot for each;
* ``returns``: addresses of the instructions that wait for a lazy value;
* ``bindings``: the variables of the evaluation;
* ``cost``, ``limit`` and ``allocated``: the charge so far, its limit, the size of the values built.

One invariant holds the whole together: *the code of a node leaves the stack as it found it, with exactly one value on
top*, whether it runs through or jumps. A label that is reached in two ways is reached with the same height.

Instructions
------------
``takes`` and ``leaves`` are the top of the stack before and after, its top on the right; ``.`` is nothing, ``-`` means
that the instruction never leaves that way. A jump leaves its values and names its target. "error" is an EvaluationError
on the stack; "value" may be one as well. "chained" is a value in a chain that started from an optional value.

=====================================  ================  ===============  ==============================  ======
instruction                            takes             leaves, next     leaves, jump                    charge
=====================================  ================  ===============  ==============================  ======
push(value)                            .                 value            -                               0
drop                                   value             .                -                               0
charge(units)                          .                 .                -                               units
refund(units)                          .                 .                -                               -units
jump(label)                            .                 -                . -> label                      0
assign(slot, value)                    .                 .                -                               0
store(slot, following)                 value             -                . -> following                  0
load_variable(name, charge)            .                 value            -                               charge
load_slot(slot, charge)                .                 value            -                               charge
load_lazily(slot, charge, init, here)  .                 value            . -> init                       charge
give_back(init)                        value             -                . -> returns                    0
enter_chain(end)                       value             value|chained    none|error -> end               0
qualify(key, end, optional)            value             value|chained    none|error -> end               0 or 1
qualify_by_value(end, optional)        value key         value|chained    none|error -> end               0 or 1
test_presence(name, end)               value             -                bool|error -> end               0 or 1
settle_presence                        value             value|false      -                               0
rewrap                                 value|chained     value            -                               0
repack                                 value             value|error      -                               0
term(absorbing, end)                   none|error value  none|error       absorbing -> end                0
settle(value)                          none|error        value|error      -                               0
fork(otherwise, end)                   value             .                . -> otherwise or error -> end  0
keep_present(end, unwrap)              value             .                value|error -> end              0
not_strictly_false                     value             bool             -                               1
give_up(position, failed)              v0 .. vposition   v0 .. vposition  error -> failed                 0
invoke(function, count, rule)          v1 .. vcount      value|error      -                               rule
member(members)                        value             bool|error       -                               0
make_list(count, optional)             v1 .. vcount      list|error       -                               0
make_map(entries)                      k1 v1 .. kn vn    map|error        -                               0
make_struct(node)                      v1 .. vn          struct|error     -                               0
begin(accu, pairs, end)                value             iterator         error -> end                    0
advance(first, second, pairs, result)  iterator          iterator         iterator -> result              0
proceed(result)                        value             .                . -> result                     0
freeze                                 value             value            -                               0
=====================================  ================  ===============  ==============================  ======

A worked example
----------------
``object.size > 3 || params.any == true`` where ``object`` is ``{}`` and ``params`` is ``{"any": true}``. After each
instruction that runs, the stack and the charge so far::

     0 push              none                        0
     1 load_variable     none {}                     0
     2 enter_chain       none {}                     0
     3 qualify           none error                  1    no such key: on to the end of the chain
     4 rewrap            none error                  1
     5 charge            none error                  2    one unit for the name
     6 push              none error 3                2
     7 invoke            none error                  3    not called: its first operand is the result
     8 term              error                       3    no decision: the error takes the place of none
     9 load_variable     error {'any': True}         3
    10 enter_chain       error {'any': True}         3
    11 qualify           error true                  4
    12 rewrap            error true                  4
    13 charge            error true                  5
    14 push              error true true             5
    15 invoke            error true                  6
    16 term              true                        6    decided: the error is gone, on to 18

Instruction 17, ``settle``, would have left the error as the result, or false if there had been none.

Errors and short-circuits
-------------------------
A computation that fails leaves its EvaluationError on the stack, in place of its value. The next instruction decides:

* ``invoke`` makes the first failed operand its result and calls nothing. Functions of one or two operands evaluate
  both. In other calls ``give_up`` follows each operand but the last, in literals each one: it leaves nothing but the
  failure and jumps over the rest.
* A chain of selections (``a.b[c].d``) is left at the first failure, and at the first absent optional.
* ``&&`` and ``||`` start with none. Of the terms that do not decide, only the first failure is kept, in place of none.
  A ``term`` that decides replaces it and jumps. ``settle`` turns a remaining none into the other bool.
* ``? :`` whose condition failed is that failure: neither arm runs. ``or`` and ``orValue`` run their right side only if
  the left one is absent.
* A loop over a failed range is that failure. Inside, failures go into the accumulator like other values:
  ``not_strictly_false`` takes a failed condition for true, so that ``exists`` and ``all`` look on for the entry that
  decides.
* A name of ``cel.bind``, and the accumulator of a loop, is computed when it is first loaded: ``load_lazily`` finds the
  slot unset, notes its own address in ``returns`` and jumps to the code of the value, which was set aside.
  ``give_back`` fills the slot, with a failure as well, and returns; now the slot is set. A value that is never loaded
  is never computed, costs nothing and cannot fail.

EvaluationStopped (a limit was exceeded, or the reference panics) is raised through all of this. Nothing absorbs it.

Cost
----
Each instruction charges as the reference does at this point, for failed computations as well;
``dra_cel.basics.declarations`` has the figures. The limit is checked at each charge.

* A name with everything selected from it is one unit, and each selection is one more. A selection that fails is
  charged; an optional one that fails or finds nothing is not. ``has()`` pays for selections only, and an arm of ``? :``
  does not pay for its name.
* A call is charged by its rule when all its operands were evaluated, failed or not. ``give_up`` jumps over the charge
  unless it was the last operand that failed.
* Lists, maps and messages have a base price, also when one of their parts failed. ``&&``, ``||``, ``? :``, ``or`` and
  ``orValue`` are free.
* Where the reference takes back a unit that it never charged, ``refund`` does so: its unsigned count wraps.

Two limits have no counterpart in the reference: ``produced`` bounds the memory of the values built,
effort (``dra_cel.basics.errors``) the work of calls that are charged less than they take.

What changes together
---------------------
For a new instruction:

1. its function in ``instructions.py``, with an effect on the stack that keeps the invariant on every way out;
2. its emission in ``assembler.py``;
3. its row in the table above, and expressions in ``tests/cel/test_machine.py`` that leave it in every way stated here;
4. if it charges: ``cost.py``, whose estimate has to be the reference's and whose strict variant an upper bound, because
   selectors that are provably cheap are evaluated without counting;
5. if it stands for a new node of the tree: ``tree.children`` and ``constants.py``, and ``compiler.py``, which has to
   give the same value or to refuse the node (``Unsupported``).

A library function is one row of a table in ``libraries/``: its types, its implementation and its rule. The rule serves
the estimate (``estimate``, and ``ceiling`` where that is no upper bound) and the machine (``count``). No evaluator
changes. Add as needed:

* ``bounded()`` in an implementation that builds more than it is given, and ``spend()`` in one that goes deep;
* ``constants.CONVERSIONS`` or ``PATTERNS``, if the call is computed or its pattern compiled before evaluation;
* ``constants.validate``, if literal arguments can be judged before evaluation;
* ``types.RUNTIME`` for values of a new Python class, and ``cel_size`` if their size counts;
* ``environment.KUBERNETES`` for a new library, cases in ``tests/cel/test_libraries.py``, a word in ``docs/cel.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

from dra_cel.basics.errors import CostLimitExceeded, EvaluationError, begin_effort, resume_effort, suspend_effort

PART_INSTRUCTIONS: Final = 4_000
"""Instructions between two pauses: a few milliseconds."""
PART_UNITS: Final = 50_000
"""Units between two pauses: an instruction may sort a list."""
PRODUCED_ELEMENTS: Final = 4_000_000
"""Characters and list elements that one evaluation may produce in total."""


class Machine:
    """The state of one evaluation."""

    __slots__ = ("allocated", "bindings", "cost", "limit", "returns", "slots", "stack")

    def __init__(self, bindings: Mapping[str, Any], slots: int, limit: int) -> None:
        self.bindings = bindings
        self.slots: list[Any] = [None] * slots
        self.stack: list[Any] = []
        self.returns: list[int] = []
        self.cost = 0
        self.limit = limit
        self.allocated = 0

    def charge(self, units: int) -> None:
        self.cost += units
        if self.cost > self.limit:
            self._check()

    def refund(self, units: int) -> None:
        """Take back what was charged. The reference does so even where nothing was: its unsigned cost then wraps."""
        self.cost -= units
        self._check()

    def _check(self) -> None:
        self.cost %= 2**64
        if self.cost > self.limit:
            raise CostLimitExceeded(f"the expression costs more than {self.limit} units to evaluate")

    def produced(self, size: int) -> None:
        """Note the memory that a new value takes."""
        self.allocated += size
        if self.allocated > PRODUCED_ELEMENTS:
            raise CostLimitExceeded("the expression needs too much memory")


Instruction = Callable[[Machine], "int | None"]


def run(code: Sequence[Instruction], machine: Machine) -> Any:
    """The value that the program leaves. Raises EvaluationError."""
    begin_effort()
    at = 0
    end = len(code)
    while at < end:
        target = code[at](machine)
        at = at + 1 if target is None else target
    return _result(machine)


def run_in_parts(code: Sequence[Instruction], machine: Machine) -> Generator[None, None, Any]:
    """The same in parts, between which other work may run. Raises EvaluationError."""
    begin_effort()
    at = 0
    end = len(code)
    left, until = PART_INSTRUCTIONS, machine.cost + PART_UNITS
    while at < end:
        target = code[at](machine)
        at = at + 1 if target is None else target
        left -= 1
        if not left or machine.cost >= until:
            left, until = PART_INSTRUCTIONS, machine.cost + PART_UNITS
            account = suspend_effort()
            yield
            resume_effort(account)
    return _result(machine)


def _result(machine: Machine) -> Any:
    value = machine.stack.pop()
    if isinstance(value, EvaluationError):
        raise value
    return value
