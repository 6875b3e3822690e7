"""A site's own program: a SuperNode whose ClientApps are forks of one process that has imported everything.

It imports nothing of the app, whose code comes from the bundle that the server sends, or from the one that is pinned.
"""
