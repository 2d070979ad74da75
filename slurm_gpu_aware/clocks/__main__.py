"""Start of the program, also as a file without site-packages: ``python3 -IS .../__main__.py``."""

import os
import sys

if not __package__:
    sys.path.insert(0, __file__.rsplit(os.sep, 3)[0])

from slurm_gpu_aware.clocks.program import main

sys.exit(main())
