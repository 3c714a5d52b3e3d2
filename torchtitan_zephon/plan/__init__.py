"""Integers to integers, pure: which chunk is read when, by which lane, on which rank."""
