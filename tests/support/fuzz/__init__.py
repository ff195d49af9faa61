"""Fuzzing of every decoder that reads what a user or a peer wrote.

A target takes bytes: it accepts them or raises one of its documented errors. Anything else is a defect: another
exception, more than its share of processor time, or memory without bound. ``targets`` has one line per target,
``tests/fuzz/corpus`` a folder for each with inputs to start from, among them one for each defect that was found. The
suite plays the corpus and a short seeded run of changes; for hours::

    PYTHONPATH=tests/support .venv/bin/python -m fuzz                      # lists the targets
    PYTHONPATH=tests/support .venv/bin/python -m fuzz cdi --seconds 3600
    PYTHONPATH=tests/support .venv/bin/python -m fuzz cdi --seconds 3600 --guided   # needs: pip install atheris

``--guided`` lets libFuzzer keep what reaches new lines. A finding is written to the current folder; ``python -m fuzz
TARGET FILE`` plays it again, and a fixed one belongs into the corpus.
"""
