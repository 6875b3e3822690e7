"""The keys of a federation: its authority, the server's certificate, the sites' key pairs, and their registration."""
