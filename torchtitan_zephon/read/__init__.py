"""(shard, range) to documents. Owns every file; one format a file; nothing here knows a lane."""
