"""A project with a provisioner file, which tests can change."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.provisioner.yaml_file import read_provisioner

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioner import Provisioner

WHOLE = """\
schema: 1
name: my-node
files:
  /opt/my/provision.sh: {source: provision.sh, mode: "0755"}
  /opt/my/lib: {source: lib/}
user_data: user-data.yaml
run: [/opt/my/provision.sh, boot]
bake: [/opt/my/provision.sh, bake]
teardown: [/opt/my/provision.sh, teardown]
commands: {report: [/opt/my/provision.sh, report]}
environment: {MY_REGION: eu}
metadata: /run/my/metadata.json
timeout_s: 90.5
config: {path: /etc/my/config.env, format: env, values: {MY_MODE: it's on, MY_GPU: false}}
outcome:
  exit_codes: {0: ok, 84: no-driver}
  file: {path: /var/lib/my/outcome.json, decision: /decision}
  events: {path: /var/log/my/events.jsonl, name: /name, format: json-lines}
  log: {path: /var/log/my.log, step: 'step (\\S+)'}
evidence:
  files: [/var/log/my/*.log]
  commands: {mounts: [findmnt, --json]}
"""


@dataclass(frozen=True)
class Project:
    """The folder of a project."""

    folder: Path

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(mode)
        return path

    def read(self, text: str) -> Provisioner:
        """Return the provisioner whose file has this text."""
        return read_provisioner(self.write("provisioner.yaml", text))


def a_project(folder: Path) -> Project:
    """Return a project with all files that `WHOLE` names."""
    project = Project(folder)
    project.write("provision.sh", "#!/bin/sh\n")
    project.write("lib/words.sh", "say() { :; }\n")
    project.write("lib/bin/tool", "#!/bin/sh\n", 0o744)
    project.write("user-data.yaml", "#cloud-config\ntimezone: Europe/Paris\n")
    return project
