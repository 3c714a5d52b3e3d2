"""One lane, from planned chunks to the sequences that the trainer takes: pure, without thread, clock or file."""
