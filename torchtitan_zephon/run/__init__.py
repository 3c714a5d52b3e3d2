"""The only threads: a pool of workers, and the stream of one rank that puts results in order."""
