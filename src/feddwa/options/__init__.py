"""Groups of options that a configuration has, each with its checks. Importing them imports neither torch nor numpy."""
