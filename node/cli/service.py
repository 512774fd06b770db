"""`panal service`: have the node of this device run whenever its user's session does."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_config, add_json

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.device.lock import Holder
    from node.device.service import Service

EXIT_NOT_RUNNING = 1


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command and its actions."""
    parser = add_command(
        subparsers,
        "service",
        lambda args: parser.error("what about it? install, uninstall or status"),
        "have the node of this device start by itself",
        epilog="On Linux a systemd user unit, on macOS a launchd agent. Its log: journalctl --user -u panal",
    )
    actions = parser.add_subparsers(metavar="ACTION")
    install = add_command(actions, "install", run_install, "write the service and start it")
    add_config(install, required=False)
    install.add_argument("--dry-run", action="store_true", help="print the file, write and start nothing")
    uninstall = add_command(actions, "uninstall", run_uninstall, "stop the service and remove it")
    add_config(uninstall, required=False)
    uninstall.add_argument("--dry-run", action="store_true", help="say what would be done")
    status = add_command(
        actions,
        "status",
        run_status,
        "say whether the service is there, and whether the node runs",
        epilog="Exit code 0: the node runs; 1: it does not.",
    )
    add_config(status, required=False)
    add_json(status)


def run_install(args: argparse.Namespace) -> int:
    """Write the file, then have it started."""
    service, config = _service(args)
    if args.dry_run:
        print(f"# {service.path}", file=sys.stderr)
        sys.stdout.write(service.content.decode("utf-8", "surrogateescape"))
        for command in service.begin:
            print(f"# {shlex.join(command)}", file=sys.stderr)
        return 0
    service.install()
    print(f"service  {service.path}\nconfig   {config.path}")
    if sys.platform.startswith("linux"):
        print(
            "It runs while you are logged in. To have it run from the start of the machine on:\n"
            "  loginctl enable-linger\n"
            "Its log: journalctl --user -u panal"
        )
    return 0


def run_uninstall(args: argparse.Namespace) -> int:
    """Stop it, then remove the file. Config, identity and store stay."""
    service, _ = _service(args)
    if args.dry_run:
        for command in [*service.end, ["rm", str(service.path)], *service.after_end]:
            print(shlex.join(command))
        return 0
    print(f"removed  {service.path}" if service.uninstall() else f"{service.path}: no such service")
    return 0


def run_status(args: argparse.Namespace) -> int:
    """Say what there is."""
    from node.device.folder import NodeFolder
    from node.device.lock import holder
    from node.device.service import run

    service, config = _service(args)
    installed = service.path.is_file()
    said = run(service.look).said if installed else ""
    current = installed and service.path.read_bytes() == service.content
    owner = holder(NodeFolder.of(config))
    if args.json:
        report = {
            "path": str(service.path),
            "installed": installed,
            "current": current,
            "manager": said,
            "running": owner is not None,
            "pid": None if owner is None else owner.pid,
        }
        print(json.dumps(report))
    else:
        state = "not installed; panal service install"
        if installed:
            state = said[:200] if current else f"{said[:200]} (of another config or panal; install it anew)"
        print(f"service  {service.path}: {state}")
        print(f"node     {_running(owner, config)}")
    return 0 if owner is not None else EXIT_NOT_RUNNING


def _running(owner: Holder | None, config: NodeConfig) -> str:
    """Whether the node of this folder runs, and from which config, if it is another one."""
    if owner is None:
        return "does not run"
    pid = f" (pid {owner.pid})" if owner.pid else ""
    elsewhere = owner.config and owner.config != str(config.path.absolute())
    return f"runs{pid}{f', from {owner.config}' if elsewhere else ''}"


def _service(args: argparse.Namespace) -> tuple[Service, NodeConfig]:
    from node.device.folder import NodeFolder
    from node.device.service import node_command, service_of
    from node.device.which_config import is_bare, load

    config = load(args.config)
    command = node_command(None if is_bare(config) else config.path)
    return service_of(command, NodeFolder.of(config).root / "service.log"), config
