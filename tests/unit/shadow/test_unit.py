"""The systemd unit of the shadow: it may do nothing but read Slurm and write its store."""

from configparser import ConfigParser
from pathlib import Path

UNIT = Path(__file__).parents[3] / "etc/systemd/gpu-aware-shadow.service"


def unit_settings() -> dict[str, str]:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


def test_it_has_no_right_beside_its_user() -> None:
    known = unit_settings()
    assert known["ExecStart"].endswith("gpu-aware selectd --shadow")
    assert known["User"] not in ("root", "slurm")
    assert (known["CapabilityBoundingSet"], known["ReadWritePaths"]) == (
        "",
        "/var/lib/slurm-gpu-aware",
    )
    on = ("PrivateTmp", "PrivateDevices", "NoNewPrivileges")
    assert [known[name] for name in on] == ["yes"] * 3
    assert known["ProtectSystem"] == "strict"
