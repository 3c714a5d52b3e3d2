"""A stand-in for the package `orjson` where that does not install: the standard library's parser, slower and laxer."""

from json import JSONDecodeError, loads

__all__ = ["JSONDecodeError", "loads"]
