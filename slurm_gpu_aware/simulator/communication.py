"""Communication share of applications: measured values, for traces that name the application.

The share c is the part of a step that is communication at the best bandwidth for its GPUs: over
links of 1/r of that bandwidth a step takes (1 - c) + c r times as long. It depends on batch size,
GPU and links, so a site with numbers of its own gives them in the trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SHARES: Mapping[str, float] = {
    # Amaral et al., SC'17, batch size 1, 2 P100: 127.4 s with NVLink in a socket (40 GB/s), 159.1 s
    # across sockets (12 GB/s): 1.249 = 1 + c (40/12 - 1)
    "alexnet": 0.107,
    "googlenet": 0.012,  # the same: 146.1 s and 150.3 s
    # MAPA, SC'21, 2 V100: up to 3 times as long over PCIe (12 GB/s) as over a double NVLink
    # (50 GB/s): 3 = 1 + c (50/12 - 1); the upper end
    "vgg16": 0.632,
    # ElasticFlow, ASPLOS'23, A100: c = 1 - T(1 GPU) / T(2 GPUs), same local batch
    "inceptionv3": 0.033,
    "inception3": 0.033,
    "resnet50": 0.045,  # mean of two batch sizes (0.033, 0.057)
    "bert": 0.058,
    "gpt2": 0.048,
    "deepspeech2": 0.020,
}
"""Application, in lower case without separators -> communication share, with its source."""


def share_of(application: str | None) -> float | None:
    """Communication share of an application; None: not measured.

    Examples
    --------
    >>> share_of("VGG-16"), share_of("ResNet50"), share_of("mine"), share_of(None)
    (0.632, 0.045, None, None)
    """
    return None if application is None else SHARES.get(re.sub(r"[-_ ]", "", application.lower()))
