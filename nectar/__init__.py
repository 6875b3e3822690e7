"""What a person holds: the command line, and what is done around runs. It never travels to a site."""
