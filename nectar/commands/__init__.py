"""The commands of ``nectar``, one a file."""
