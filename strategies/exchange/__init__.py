"""Messages between the server and its sites: the roll call, sending, the inbox, and what a reply must be."""
