"""(shard, range) to records. Owns every file; one format a file; nothing here knows a lane."""
