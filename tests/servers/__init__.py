"""Servers on 127.0.0.1 that tests start and stop: S3, the hub's API, and a proxy in front that fails on request.

``start_s3()``, ``start_hub()`` and ``start_proxy(url)`` are context managers for any script; ``tests/read/stores`` has
them as fixtures.
"""
