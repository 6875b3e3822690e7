"""A site's own program: a SuperNode whose ClientApps are forks of one process that has imported everything.

`nectar site` starts Flower's SuperNode, which starts ``bin/flower-superexec``: Flower's SuperExec with an executor of
ours, which writes each task as a line to a `zygote`, which forks. They import nothing of the app, whose code comes from
the bundle that the server sends, or from the one that is pinned.
"""
