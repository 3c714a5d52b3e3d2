"""The only importer of TorchTitan: what differs between its generations is in ``generations``, a module runs each.

Importing this package imports neither torch nor TorchTitan.
"""

from __future__ import annotations

import threading

training_began = threading.Event()
"""Set in a process, for good, once its trainer has started up and asks for batches."""
