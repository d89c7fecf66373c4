"""What an emulated GPU is, as one JSON file that every process reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from kdvfs_hw.emulator.behaviour import TableBehaviour
from kdvfs_hw.emulator.sensors import Sensors
from kdvfs_hw.emulator.state import State, Thermal
from kdvfs_sim.core.documents import json_of
from kdvfs_sim.core.errors import DeviceError
from kdvfs_sim.core.governor import DynamicGovernor

FORMAT: Final = "kdvfs-emulated-gpu"
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """Identity, silicon and sensors of one emulated GPU. ``architecture`` is nvmlDeviceArchitecture_t."""

    name: str
    behaviour: TableBehaviour
    power_limit_w: float
    sensors: Sensors = field(default_factory=Sensors)
    thermal: Thermal = field(default_factory=Thermal)
    governor: DynamicGovernor | None = None
    architecture: int = 9
    pci_bus_id: str = "00000000:1B:00.0"
    driver: str = "emulated"
    nvml: str = "emulated"
    initial_energy_j: float = 2000.0

    def state(self, t_ns: int) -> State:
        """The GPU as its driver is loaded at ``t_ns``: idle, nothing locked, no faults."""
        return State(
            self.behaviour,
            t_ns=t_ns,
            governor=self.governor,
            thermal=self.thermal,
            energy_j=self.initial_energy_j,
        )

    def to_json(self) -> dict[str, Any]:
        document = {name: getattr(self, name) for name in self.__dataclass_fields__}
        document |= {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "behaviour": self.behaviour.to_json(),
            "sensors": asdict(self.sensors),
            "thermal": asdict(self.thermal),
            "governor": None if self.governor is None else asdict(self.governor),
        }
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DeviceSpec:
        """Raises DeviceError for a document of another kind or version."""
        kind = (document.get("format"), document.get("schema_version"))
        if kind != (FORMAT, SCHEMA_VERSION):
            raise DeviceError(
                f"emulated GPU: format and version are {kind}; {(FORMAT, SCHEMA_VERSION)} is right"
            )
        fields = {name: document[name] for name in cls.__dataclass_fields__}
        fields["behaviour"] = TableBehaviour.from_json(document["behaviour"])
        fields["sensors"] = Sensors(**document["sensors"])
        fields["thermal"] = Thermal(**document["thermal"])
        governor = document["governor"]
        fields["governor"] = None if governor is None else DynamicGovernor(**governor)
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A spec with the instant its driver was loaded, which its times count from."""

    spec: DeviceSpec
    uuid: str
    start_ns: int
    boot_id: str


def load(path: Path) -> Loaded:
    """Read ``device.json``. Raises DeviceError if it is missing or not ours."""
    try:
        document = json_of(path.read_bytes())
        return Loaded(
            spec=DeviceSpec.from_json(document["spec"]),
            uuid=document["uuid"],
            start_ns=document["start_ns"],
            boot_id=document["boot_id"],
        )
    except FileNotFoundError:
        raise DeviceError(f"{path.parent}: no emulated GPU there") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeviceError(f"{path}: is not an emulated GPU ({type(error).__name__}: {error})") from None


def save_new(path: Path, loaded: Loaded) -> bool:
    """Write ``device.json`` whole, unless another process has just done so; whether it was us."""
    document = {
        "spec": loaded.spec.to_json(),
        "uuid": loaded.uuid,
        "start_ns": loaded.start_ns,
        "boot_id": loaded.boot_id,
    }
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(document))
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
