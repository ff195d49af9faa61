"""What a search may leave out, and why that changes neither the first solution nor the first error.

The invariant
-------------
A search tries options in reference order: requests in order, their alternatives in order, devices in order. Its answer
is the first thing it meets on that walk: a solution; an error (a selector that raises on a device that is reached, a
request for all devices that a constraint forbids); or the end, a refusal. With a pruner the walk skips branches, and
the answer stays the same. So a branch may be skipped only if it holds neither

- the *first* solution. (It may hold others: the search ends at the first.)
- a place where an error is met before that.

A branch is known by its prefix: the devices taken so far. The search gives back exactly what it took, so everything
said below about a prefix is said about ``State`` and the ledgers as they are at that moment.

The cuts
--------
*Error horizon* (``pruner``). A stage is fallible if an error can be met at it. Nothing is concluded from the
first fallible stage ahead, nor from what is behind it: a branch that cannot be completed may still arrive there, and
meet the error. A branch in which the requests before that stage cannot all be served never arrives, and may be cut. It
arrives in vain where no device is left to choose or to fail on: ``Propagation._arrives``.

*Propagation* (``pruner``). For each alternative ahead the remaining domain: devices that it may still get. A
device leaves it when it was taken, when a ledger whose refusals last refuses it, or when no solution behind this
prefix uses it. The last is relaxation: forget all rules but some, and show that even then it cannot be used. Domains
that become too small end the branch. Nothing is in an empty branch, so nothing is lost.

*Bounds* (``bounds`` and what it calls) are relaxations of all remaining requests together: different devices for all
(``assignable``), groups that agree in a value, counters and capacities by sums (``aggregate_bounds``). A further rule
can only remove solutions. So a bound that knows less than all rules says "impossible" too rarely, never too often.

*Device symmetry* (``symmetry``). Let d and e be devices that no domain and no ledger tells apart, also after
what was taken so far, d before e. Exchanging them turns a solution behind prefix + e into one behind prefix + d, which
comes first: the first solution does not lie behind prefix + e. An error behind prefix + e is met behind prefix + d as
well, and would have ended the search there. So e is not tried when d has failed.

*Request symmetry* (``symmetry``). Two requests that accept the same devices and concern all ledgers alike can
exchange what they took. In the first solution the earlier one has the earlier devices: otherwise the exchange would
give a solution that comes first. So the later one only looks behind the device of the earlier. This is a ledger that
the pruner adds; only behind the last fallible stage, where no error can be met.

Both symmetries together lose nothing: each skips only what is not the first solution of *all*, whatever else is
skipped.

*Nogoods* (``Pruner.key``). What follows a place in the search depends on the domain in turn, what it may still take,
the devices free for later domains, the number of results, and ``Ledger.state`` of the ledgers ahead. Where all these
are equal to a place that failed, the same follows: it fails.

An example
----------
Devices d0 (model A, numa 0), d1 (A, 1), d2 (A, 1), d3 (B, 1). Requests a and b want model A, c wants model B; all agree
in ``numa``. (``tests/allocator/test_theory.py`` runs it.)

Without a pruner: a=d0; b may only have numa 0, and d0 is taken: fails. a=d1, b=d2, c=d3: solved.

With one, before the first choice: the domains are a {d0 d1 d2}, b {d0 d1 d2}, c {d3}. Propagation along ``numa``:
value 0 has no device for c, so d0 leaves: a {d1 d2}, b {d1 d2}, c {d3}. The bound finds different devices for all.
The first choice, a=d1, leaves b {d2}, c {d3}: the first solution, and a=d0 was never tried.

Let c want two devices: d3 is one too few. No stage is fallible, so the answer is a refusal at once. Now let c's
selector also raise on d0. c is fallible: nothing is concluded from it, though it can never be served. d0 leaves
the domains of a and b all the same, since these two need two devices of one value. Behind a=d1, b=d2, c looks at its
devices in order: d0 is free, and raises. The answer is that error, with the pruner as without.

Had the walk failed behind a=d1, a=d2 would not be tried, since d1 and d2 are interchangeable; and behind a=d1, b would
not look before d1, since a and b are symmetric.

What changes together
---------------------
- a ledger and what it says of itself (``Ledger``): a false claim is a wrong answer; ``test_ledgers.py`` compares.
- a new way to end an attempt with an error: ``Domain.cannot_raise``, and the nodes in ``node_index``.
- what ``Ledger.admit`` looks at: ``state``, ``tells_apart``, ``alike_now`` and ``treats`` of the same ledger.
- what a frame chooses from, or the order in which it chooses: ``Pruner.key``, and both symmetries.
- a rule by which two requests may have the same device: ``Sharing``, and every bound that counts devices.
"""
