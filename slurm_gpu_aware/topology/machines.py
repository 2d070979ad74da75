"""Known machines as hardware graphs, described by rules.

Vendor machines follow the vendors' public documentation, with nvidia-smi's GPU numbers. The
``mapa-`` machines are those of the MAPA paper (Ranganath et al., SC'21, sections 4 and 5, fig. 17);
``mapa-torus-2d`` and ``mapa-cubemesh-16`` correct errors in the tables of the paper's code.

Paths through the host have no documented bandwidth. They count as `PCIE_GBPS` (PCIe gen3 x16, MAPA
table 1; the paper's code has 10), below every NVLink and xGMI link. In machines of PCIe
cards the steps of nvidia-smi's words scale with the generation.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import combinations

from slurm_gpu_aware.model.hardware_graph import (
    NVLINK_GBPS,
    PCIE_GBPS,
    HardwareGraph,
    class_gbps,
    uniform_graph,
)
from slurm_gpu_aware.model.profile import Link

_Pairs = Collection[tuple[int, int]]
_NVLINK = NVLINK_GBPS[4]
# NVIDIA's hybrid cube mesh: two fully connected quads, and GPU i to its twin i + 4.
_CUBE_MESH = [(a, b) for a, b in combinations(range(8), 2) if a // 4 == b // 4 or b == a + 4]
# The V100 machine doubles eight of them; they form one ring over all eight GPUs.
_CUBE_MESH_DOUBLE = [(0, 3), (2, 3), (1, 2), (1, 5), (5, 6), (6, 7), (4, 7), (0, 4)]


def _linked(
    n: int,
    per_socket: int,
    *linked: tuple[int, _Pairs],
    per_link: float = _NVLINK,
    kind: str = "NV",
) -> HardwareGraph:
    """Machine with these (direct links, pairs); all other pairs have a host path (``SYS``)."""
    links = {pair: Link(*pair, "SYS", PCIE_GBPS) for pair in combinations(range(n), 2)}
    for count, pairs in linked:
        for a, b in pairs:
            links[min(a, b), max(a, b)] = Link(a, b, f"{kind}{count}", count * per_link)
    return HardwareGraph.from_links(links.values(), n=n, groups=[i // per_socket for i in range(n)])


def _dgx1_p100() -> HardwareGraph:
    return _linked(8, 4, (1, _CUBE_MESH), per_link=NVLINK_GBPS[1])


def _dgx1_v100() -> HardwareGraph:
    return _linked(8, 4, (1, _CUBE_MESH), (2, _CUBE_MESH_DOUBLE))


def _switched(n: int, per_socket: int, links: int, per_link: float = _NVLINK) -> HardwareGraph:
    """NVSwitch crossbar: the bandwidth of an edge is one GPU's limit, shared by its peers."""
    return _linked(n, per_socket, (links, [*combinations(range(n), 2)]), per_link=per_link)


def _pcie(per_socket: int, gbps: float, per_switch: int = 1, bridge: int = 0) -> HardwareGraph:
    """Two sockets with GPUs on PCIe; ``gbps``: of one slot, in one direction.

    ``per_switch``: neighbours behind one PCIe switch; ``bridge``: NVLinks of a bridge over each two
    neighbours.
    """

    def link(a: int, b: int) -> Link:
        if bridge and a // 2 == b // 2:
            return Link(a, b, f"NV{bridge}", bridge * _NVLINK)
        near = "PIX" if a // per_switch == b // per_switch else "NODE"
        word = near if a // per_socket == b // per_socket else "SYS"
        return Link(a, b, word, class_gbps(word) * gbps / PCIE_GBPS)

    n = 2 * per_socket
    links = [link(*pair) for pair in combinations(range(n), 2)]
    return HardwareGraph.from_links(links, n=n, groups=[i // per_socket for i in range(n)])


def _power_node(per_socket: int, links: int, per_link: float = _NVLINK) -> HardwareGraph:
    """IBM Power: NVLinks join the GPUs of a socket, the host joins sockets."""
    n = 2 * per_socket
    pairs = [(a, b) for a, b in combinations(range(n), 2) if a // per_socket == b // per_socket]
    return _linked(n, per_socket, (links, pairs), per_link=per_link)


def _mi250x() -> HardwareGraph:
    """HPE Cray EX235a (Frontier, LUMI): four MI250X of two dies each, which count as GPUs.

    The links are the driver's ``xgmi_num_links`` on Frontier (ROCm/rocm-systems, issue 5763). Dies
    without a direct link communicate through the host: RCCL never forwards over a third one.
    """
    inside = [(0, 1), (2, 3), (4, 5), (6, 7)]
    single = [(0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)]
    pairs = (4, inside), (2, [(0, 6), (2, 4)]), (1, single)
    return _linked(8, 8, *pairs, per_link=50.0, kind="XGMI")


def _torus_2d() -> HardwareGraph:
    """4 x 4 torus, GPU 4r + c. Steps inside a row are double, except the wrap of every row
    (single); steps inside a column are single, except the wraps of columns 0 and 3 (double).
    """
    rows = [(4 * r + c, 4 * r + (c + 1) % 4) for r in range(4) for c in range(4)]
    columns = [(4 * r + c, (4 * r + 4) % 16 + c) for r in range(4) for c in range(4)]
    double = [(a, b) for a, b in rows if b > a] + [(12, 0), (15, 3)]
    return _linked(16, 4, (1, [*rows, *columns]), (2, double))


# Hypothetical cube mesh of 16 (fig. 17b), from the authors' tables. If these contradict each other,
# the class counts; the second 10-9 (single) is read as 10-11.
_MESH16_DOUBLE = [
    *[(0, 3), (1, 2), (6, 7), (4, 15), (7, 12), (8, 10), (9, 10), (12, 15), (14, 15)],
    *[(4, 5), (12, 13), (0, 11), (1, 5), (3, 8), (9, 13)],
]
_MESH16_SINGLE = [
    *[(0, 1), (0, 2), (1, 3), (2, 6), (2, 9), (4, 6), (4, 7), (5, 6), (5, 7), (6, 13), (8, 9)],
    *[(8, 11), (9, 11), (10, 11), (10, 14), (12, 14), (13, 14), (13, 15)],
]

_MACHINES: Mapping[str, Callable[[], HardwareGraph]] = {
    "dgx-1-p100": _dgx1_p100,
    "dgx-1-v100": _dgx1_v100,
    "dgx-2": lambda: _switched(16, 8, 6),
    "dgx-a100": lambda: _switched(8, 4, 12),
    "dgx-h100": lambda: _switched(8, 4, 18),
    "dgx-h200": lambda: _switched(8, 4, 18),
    # NVLink 5 (NVIDIA, DGX B200 and B300 User Guides): 18 links, 1.8 TB/s of a GPU both ways.
    "dgx-b200": lambda: _switched(8, 4, 18, NVLINK_GBPS[5]),
    "dgx-b300": lambda: _switched(8, 4, 18, NVLINK_GBPS[5]),
    # A Slurm node is one compute tray of the rack: 2 Grace CPUs, 4 GPUs (NVIDIA, DGX GB Rack Scale
    # Systems User Guide, hardware).
    "gb200-nvl72": lambda: _switched(4, 2, 18, NVLINK_GBPS[5]),
    "gb300-nvl72": lambda: _switched(4, 2, 18, NVLINK_GBPS[5]),
    "hgx-a100-4": lambda: uniform_graph(4, "NV4", 100.0),
    # Bridges of 600 GB/s both ways over pairs (NVIDIA, H100 NVL product brief).
    "h100-nvl-8": lambda: _pcie(4, 63.0, bridge=12),
    "hpe-ex235a-mi250x": _mi250x,
    "ibm-ac922-4xv100": lambda: _power_node(2, 3),
    "ibm-ac922-6xv100": lambda: _power_node(3, 2),
    "ibm-minsky-4xp100": lambda: _power_node(2, 2, NVLINK_GBPS[1]),
    "mapa-dgx-p": _dgx1_p100,
    "mapa-dgx-v": _dgx1_v100,
    "mapa-summit": lambda: _power_node(3, 2),
    "mapa-torus-2d": _torus_2d,
    "mapa-cubemesh-16": lambda: _linked(16, 4, (1, _MESH16_SINGLE), (2, _MESH16_DOUBLE)),
    "pcie-gen4-4": lambda: _pcie(2, 31.5),
    "pcie-gen4-8": lambda: _pcie(4, 31.5),
    "pcie-gen5-8": lambda: _pcie(4, 63.0),
    # Two GPUs on the PCIe switch of each of four ConnectX-8 (NVIDIA, "ConnectX-8 SuperNICs Advance
    # AI Platform Architecture with PCIe Gen6 Connectivity"); the GPUs have PCIe gen5 x16.
    "rtx-pro-8": lambda: _pcie(4, 63.0, per_switch=2),
    # One xGMI link of 16 lanes of 32 GT/s between every two GPUs, so 64 GB/s.
    "mi300x-8": lambda: _linked(
        8, 4, (1, [*combinations(range(8), 2)]), per_link=64.0, kind="XGMI"
    ),
}


def machine_names() -> tuple[str, ...]:
    """Names that :func:`machine` knows, sorted."""
    return tuple(sorted(_MACHINES))


def machine(name: str) -> HardwareGraph:
    """Hardware graph of a known machine; the name is not case-sensitive.

    Raises ValueError for an unknown name; the message lists the known names.
    """
    build = _MACHINES.get(name.lower())
    if build is None:
        raise ValueError(f"unknown machine {name!r}; known: {', '.join(machine_names())}")
    return build()
