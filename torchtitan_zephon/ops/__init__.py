"""Records to records, pure: tokenize, pack, shuffle."""
