"""The only importer of TorchTitan. ``generations`` has a row for each generation, which names the module that runs it.

Importing this package imports neither torch nor TorchTitan.
"""

from __future__ import annotations

import threading

training_began = threading.Event()
"""Set in a process, for good, once its trainer has started up and asks for batches."""
