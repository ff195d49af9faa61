"""Changes that would help a waiting pod: proposed by what a node answers, and proven on the pipeline itself.

``search`` makes a change, asks the node again, and goes on from its next answer; what it finds is a fix only if the
whole attempt then ends with a node. ``change`` has the values, ``trial`` makes a change and takes it back; each other
file knows the remedies of one kind of obstacle.
"""
