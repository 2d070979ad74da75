"""Reports of ``gpu-aware-profile node --json``: nodes that no sweep through Slurm reaches."""

from __future__ import annotations

from gpu_aware_profile.imports.formats.reader import Measured, ReadOptions, Source
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.report import SCHEMA, parse_report
from slurm_gpu_aware.text_file import Table


class ProbeReportFile:
    """Reader of the report of one node."""

    name = "probe-report"

    def matches(self, source: Source) -> bool:
        """Say whether a file is a report of the probe."""
        return source.content is not None and source.content.get("schema") == SCHEMA

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Check the report; it says all itself. Raises SourceError."""
        if options.node is not None or options.value is not None:
            raise SourceError(f"{source.name}: a report names its node; leave --node, --value out")
        return Measured(Table(source.name, (), (), ()), report=parse_report(source.content))
