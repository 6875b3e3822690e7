"""The keys of a federation: its authority, the server's certificate, the sites' pairs, and who is registered."""
