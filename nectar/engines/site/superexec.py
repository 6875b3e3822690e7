"""The site's `flower-superexec`: ``python -m nectar.engines.site.superexec OPTIONS``, as its SuperNode starts it."""

from nectar.engines.site.clientapp import superexec

if __name__ == "__main__":
    superexec()
