"""The command of the trainer, where each rank works in a folder of its own. Run under torchrun.

torchrun ... -m tests.titan.odd_rank FOLDER FOLDER ... -- --job.config_file JOB.toml ...
"""

from __future__ import annotations

import os
import sys

from torchtitan_zephon import train

if __name__ == "__main__":
    border = sys.argv.index("--")
    os.chdir(sys.argv[1:border][int(os.environ["RANK"])])
    train.main(sys.argv[border + 1 :])
