"""Files behind a URL: one client a protocol, and one store over all of them."""
