"""An AdmissionCheck of Kueue that knows devices: a Workload is admitted when all of its pods have a place.

Kueue admits by quota. Quota says nothing about free devices, so an admitted job may hold its quota while its pods wait.
The controller ``admission`` answers the checks whose ``controllerName`` is ``dra.kopf.dev/fit``. It plans all pods of a
Workload that has quota, with their claims, in a view of the cluster in which every earlier promise has its devices:

* *Ready*: all of them fit at the same time. That is a promise, and its devices and room count as taken from now on.
* *Retry*: they do not fit now. Kueue takes the quota back and waits. Freed devices end the wait early.
* *Rejected*: they would not fit if nothing else were there.

A promise ends when all pods of the Workload are bound, when it is evicted or finished, or when its time is over. No
promise is stored: a new process finds the Workloads that are Ready and have not started, and plans them first.

``workloads`` says what a Workload waits for, ``planner`` finds places for ``pod_sets``, ``promises`` keep them,
``controller`` watches and decides in ``rounds``, ``api`` reads and writes.
"""
