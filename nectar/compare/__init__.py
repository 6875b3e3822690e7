"""`nectar compare`: several methods, several seeds, one table; what has been run is never run again."""
